"""A real wrapper as a process, with a POSIX store; where a test says so also commands named squeue and scontrol that answer and record."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from job_wrapper import slurm_job
from job_wrapper.store import Entry, Kind, RunLog, open_store

# Where a command, a thread or a program stands still for some seconds because the machine is busy, no wrapper gives up waiting for it.
# (Other modules take these over as they are imported.)
PATIENT = (
    "from job_wrapper import slurm_job; from job_wrapper.run import rules; "
    "slurm_job.PATIENCE = rules.VERDICT_WAIT = rules.WRITE_WAIT = rules.NO_DEADLINE = 100.0; "
)
# Neither does it leave at the end of the time without the checkpoint that is made when the time is short.
LEAVES_LATE = PATIENT + "rules.Interruption.leave_by = lambda self: (self.deadline or self.arrived) + 100.0; "
# The look for a newer claim is every 15 s: too long for a test.
_WRAPPER = (
    PATIENT + "import sys; from job_wrapper.run import loop, main; loop.CHECK_EVERY = 0.3; sys.exit(main(sys.argv[1:]))"
)
_FAKE = """#!/bin/sh
# Records its call; nodes are drained; squeue answers the line in the file "view" (of another job: "view-ID"), scontrol does what "requeue" says.
# Where there is a file "after", a requeue waits for the file that it names.
[ "$1" = update ] || echo "$(basename "$0") $*" >> "$FAKE/calls"
case "$(basename "$0") $1" in
"scontrol update") echo "${3#Comment=}" > "$FAKE/comment" ;;
squeue*)
  case "$*" in *%k) cat "$FAKE/comment" 2>/dev/null; exit 0 ;; esac
  view="$FAKE/view"; [ -e "$FAKE/view-$5" ] && view="$FAKE/view-$5"
  [ -s "$view" ] && cat "$view" || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; } ;;
sinfo*) for node in $(echo "$4" | tr , ' '); do echo "$node draining"; done ;;
"scontrol requeue"|"scontrol requeuehold") [ -s "$FAKE/refuse" ] && { cat "$FAKE/refuse" >&2; exit 1; }
  [ ! -e "$FAKE/after" ] || until [ -e "$(cat "$FAKE/after")" ]; do sleep 0.05; done
  echo "COMPLETING;1;N/A;1;1;N/A;N/A;9;" > "$FAKE/view" ;;
esac
"""


class Room:
    """One test's store, node settings and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fake = path / "fake"
        self.fake.mkdir()
        for name in ("squeue", "scontrol", "sinfo"):
            (self.fake / name).write_text(_FAKE)
            (self.fake / name).chmod(0o755)
        self.store = path / "store"
        self.store.mkdir()
        self.uri = f"file://{self.store}"
        self.marked = False
        self.wrapper = _WRAPPER
        self.notice_file = path / "notice.json"
        self.node: dict[str, Any] = {"cluster": "c", "node": "n1", "notice_file": str(self.notice_file)}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._said: dict[int, bytes] = {}
        """By process: what ``until_said`` has read of its words."""

    @staticmethod
    def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> Any:
        """Until it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = what()
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError("did not happen in time")

    def environ(self, restarts: int = 0, **more: str) -> dict[str, str]:
        """As srun gives it."""
        self._put("node.json", json.dumps(self.node))
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SPOTBURST_"))}
        base |= {
            "SPOTBURST_NODE_CONFIG": str(self.path / "node.json"),
            "FAKE": str(self.fake),
            "PATH": f"{self.fake}:{base['PATH']}",
            "SLURM_JOB_ID": "12",
            "SLURM_CLUSTER_NAME": "c",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "0",
            "ENVIRONMENT": "BATCH",
        }
        if restarts:
            base["SLURM_RESTART_COUNT"] = str(restarts)
            if not self.marked:
                open_store(self.uri)  # as an earlier attempt, or the manager, has done
            self.marked = True
        return {k: v for k, v in (base | more).items() if v != "-"}

    def _put(self, name: str, text: str) -> None:
        """At once: another wrapper may be about to read it."""
        (self.path / f"{name}.new").write_text(text)
        (self.path / f"{name}.new").replace(self.path / name)

    def view(
        self,
        state: str = "RUNNING",
        restarts: int = 0,
        preempt: str = "N/A",
        requeue: int = 1,
        batch: int = 1,
        held: bool = False,
    ) -> None:
        """What squeue answers from now on."""
        end = "9999999999" if preempt == "N/A" else str(int(time.time()) + 300)
        (self.fake / "view.new").write_text(
            f"{state};{restarts};{preempt};{requeue};{batch};1000;{end};{0 if held else 9};\n"
        )
        (self.fake / "view.new").replace(self.fake / "view")

    def other_job(self, job_id: str, state: str | None) -> None:
        """What squeue answers about another job; None: it knows of none."""
        (self.fake / f"view-{job_id}").write_text("" if state is None else f"{state};0;N/A;1;1;1000;9999999999;9;\n")

    def preempt(self) -> None:
        """Slurm preempts the job now."""
        self.view(preempt=str(int(time.time())))

    def requeues_after(self, file: str) -> None:
        """Slurm ends this attempt, by its requeue, only once the program has made that file."""
        (self.fake / "after").write_text(str(self.path / file))

    def calls(self, command: str = "scontrol") -> list[str]:
        """Calls of that command so far."""
        try:
            lines = (self.fake / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line for line in lines if line.startswith(command)]

    def start(
        self, program: str | list[str], *options: str, slurm: bool = True, **environ: str
    ) -> subprocess.Popen[bytes]:
        """Start the wrapper. A text is a Python program, a list a command."""
        if slurm and not (self.fake / "view").exists():
            self.view()
        command = program
        if isinstance(program, str):
            file = self.path / "program.py"
            self._put(file.name, textwrap.dedent(program))
            command = [sys.executable, str(file)]
        restarts = int(environ.pop("restarts", "0"))
        env = self.environ(restarts, **environ)
        named: list[str] = []
        if not slurm:
            env = {k: v for k, v in env.items() if not k.startswith("SLURM_")}
            named = [] if "--run" in options else ["--run", "here"]
        uri = [] if "--uri" in options else ["--uri", self.uri]
        process = subprocess.Popen(
            [sys.executable, "-c", self.wrapper, *uri, *named, *options, "--", *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.path,
        )
        self.processes.append(process)
        return process

    def run(self, program: str | list[str], *options: str, slurm: bool = True, **environ: str) -> tuple[int, str, str]:
        """Start, wait, and return exit code, stdout, stderr."""
        return self.end(self.start(program, *options, slurm=slurm, **environ))

    def until_said(self, process: subprocess.Popen[bytes], words: str, seconds: float = 120.0) -> None:
        """Until the wrapper, or its program, has said that on standard error."""
        assert process.stderr is not None
        end, said = time.monotonic() + seconds, self._said.setdefault(process.pid, b"")
        while words.encode() not in said:
            assert select.select([process.stderr], [], [], max(0.0, end - time.monotonic()))[0], said.decode()
            more = os.read(process.stderr.fileno(), 65536)
            assert more, f"it has ended: {said.decode()}"
            said = self._said[process.pid] = said + more

    def end(self, process: subprocess.Popen[bytes], seconds: float = 120.0) -> tuple[int, str, str]:
        """Wait for its end."""
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out.decode(), (self._said.pop(process.pid, b"") + err).decode()

    def log(self, run: str = "c/12/main") -> list[Entry]:
        """The run's log."""
        return RunLog(open_store(self.uri, prove=False), run).entries()

    def kinds(self, run: str = "c/12/main") -> list[str]:
        """Its kinds of entries."""
        return [entry.kind.value for entry in self.log(run)]

    def commits(self, run: str = "c/12/main") -> list[Entry]:
        """Its commits."""
        return [entry for entry in self.log(run) if entry.kind is Kind.COMMIT]

    def notice(self, seconds: float = 300.0, kind: str = "reclaim") -> None:
        """The node agent writes a notice."""
        from job_wrapper.notice.file import write_notice
        from job_wrapper.notice.types import Notice

        now = time.time()
        write_notice(self.notice_file, Notice("aws", kind, f"{kind}@{now}", now, now + seconds))  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """A command that stands in for Slurm's is waited for, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm_job, "PATIENCE", 100.0)
        yield


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """Everything it started is gone afterwards."""
    room = Room(tmp_path)
    yield room
    for process in room.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
