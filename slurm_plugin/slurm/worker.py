"""The other end of ``pyslurm_worker``: a process that is started when it is needed, and again after any trouble."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm import command

START = 20.0
"""Seconds more for the first answer: importing pyslurm."""


class SlowError(Exception):
    """An answer took too long, and its process was killed."""


class Worker:
    """Asks one thing at a time, whichever thread asks; ``timeout`` in seconds bounds each answer. ``env`` names slurm.conf."""

    def __init__(self, env: Mapping[str, str], timeout: float) -> None:
        self._env, self._timeout = dict(env), timeout
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def ask(self, shown: str, call: str, **arguments: Any) -> Any:
        """What ``pyslurm_worker.Calls`` answers. ``shown`` says in errors what was asked.

        Raises ``SlurmUnavailable`` when there is no answer within the time, or libslurm gave up its process or says that slurmctld
        didn't answer; ``SlurmRefused`` with Slurm's words.
        """
        with self._lock:
            try:
                answer = self._answer(json.dumps({"call": call, "arguments": arguments}).encode())
                if "error" not in answer:
                    return answer["result"]
                said = answer["error"]
                if not command.is_absence(said):
                    raise SlurmRefused(f"{shown}: {said}")
            except SlowError as error:
                said = str(error)
            except (OSError, EOFError, ValueError) as error:
                said = self._last_words() or f"pyslurm's process failed: {type(error).__name__} {error}"
            # Begun anew, it reads slurm.conf again.
            self._stop()
            raise SlurmUnavailable(f"{shown}: {said}")

    def close(self) -> None:
        """End the process. The next question starts another."""
        with self._lock:
            self._stop()

    def _answer(self, request: bytes) -> Any:
        pipe, wait = self._pipe, self._timeout
        if pipe is None:
            pipe, wait = self._start(), self._timeout + START
        process = self._process
        late = threading.Event()

        def give_up() -> None:
            late.set()
            if process is not None:
                process.kill()  # whoever waits for it reads the end of the pipe then

        # Not by ``poll``, which is content with an answer's first byte.
        timer = threading.Timer(wait, give_up)
        timer.start()
        try:
            pipe.send_bytes(request)
            return json.loads(pipe.recv_bytes())
        except (OSError, EOFError) as error:
            if late.is_set():
                raise SlowError(f"no answer within {wait:g} s") from error
            raise
        finally:
            timer.cancel()

    def _start(self) -> Connection:
        # Closed by _stop.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slurm_plugin.slurm.pyslurm_worker", str(number)],
                env=self._env,
                cwd="/",  # Python looks for modules there first
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[number],
                start_new_session=True,
            )
        self._pipe = Connection(ours.detach())
        return self._pipe

    def _last_words(self) -> str:
        """How a process that has ended did so, with its last line: libslurm's reason."""
        if self._process is None:
            return ""
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        said = f"; the last it said: {lines[-1].strip()}" if lines else ""
        return f"pyslurm's process ended with status {self._process.returncode}{said}"

    def _stop(self) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._said.close()
            self._process = None
