"""Long-running programs of a private cluster: started detached, noted on disk, ended by exactly the process that was noted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_plugin.cloud.local.state import Process, read_json, write_json

PATIENCE = 10.0
"""Seconds between SIGTERM and SIGKILL."""


def without_name_server(folder: Path, command: Sequence[str]) -> list[str]:
    """The command for a program that asks no name server. Needs root; writes a file to ``folder``.

    Nobody knows the machines' names. slurmctld 24.11 asks for the name behind each client's address, and where a name server does not answer,
    that takes the resolver's timeout. Where it answers that it can't tell now, every Slurm asks ten times within ten seconds for the address of
    a machine that has not registered (``_xgetaddrinfo``; the signal of a preemption goes to it), with its configuration locked: all of
    slurmctld stops meanwhile. "No such name", which ``/etc/hosts`` gives, ends both at once.
    """
    place = Path("/etc/nsswitch.conf")
    if not place.is_file():
        return list(command)
    lines = place.read_text(encoding="utf-8", errors="replace").splitlines()
    # Of what is installed here, only what asks nobody.
    asked = {word for line in lines if line.startswith("hosts:") for word in line.split()}
    hosts = ["hosts:", *(word for word in ("files", "myhostname") if word in asked | {"files"})]
    ours = folder / place.name
    kept = [line for line in lines if not line.startswith("hosts:")]
    ours.write_text("\n".join([*kept, " ".join(hosts)]) + "\n", encoding="utf-8")
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(ours), str(place), *command]


class Daemons:
    """The programs noted in ``<root>/run``. Any process may end what another one started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes = root / "run"
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
        """Run a program that stays in the foreground, in a session of its own, its output appended to ``log``."""
        self._children = [c for c in self._children if c.poll() is None]
        with log.open("ab") as output:
            child = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = Process.of(child.pid)
        assert process is not None  # noqa: S101 - our own child, not yet waited for
        self._children.append(child)
        write_json(self.notes / f"{name}.json", process.to_dict())
        return process

    def process(self, name: str) -> Process | None:
        """The noted process; None where there is no note."""
        return Process.from_dict(read_json(self.notes / f"{name}.json"))

    def alive(self, name: str) -> bool:
        """Whether it runs."""
        process = self.process(name)
        return process is not None and process.alive()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal; with SIGKILL wait for the end."""
        process = self.process(name)
        if process is not None and process.send(number) and number == signal.SIGKILL:
            process.wait(PATIENCE)
        self._reap()

    def stop(self, name: str) -> None:
        """End it, gently first. None of that name is no error."""
        process = self.process(name)
        if process is not None:
            process.end(patience=PATIENCE)
        (self.notes / f"{name}.json").unlink(missing_ok=True)
        self._reap()

    def strays(self) -> list[Process]:
        """Daemons of this cluster found by their command line: also when the notes are lost."""
        known = ("munged", "slurmctld", "mariadbd", "spotburst")
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                mine = any(word == str(self.root) or f"{self.root}/" in word for word in words[1:])
                program = any(Path(word).name in known for word in words[:2])
                if mine and program and ("manager" in words or any(name in words[0] for name in known[:-1])):
                    process = Process.of(int(entry.name))
                    if process is not None:
                        found.append(process)
        return found

    def _reap(self) -> None:
        until = time.monotonic() + 1.0
        while any(c.poll() is None and not _runs(c.pid) for c in self._children) and time.monotonic() < until:
            time.sleep(0.01)
        self._children = [c for c in self._children if c.poll() is None]


def _runs(pid: int) -> bool:
    process = Process.of(pid)
    return process is not None and process.alive()
