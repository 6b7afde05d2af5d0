"""How long slurmctld is kept waiting by ResumeProgram: real starts for a thousand nodes and jobs, the slowest of them.

python -m tests.bench.bench_resume_program [RUNS]

Once on a state directory at rest, once beside a process that commits to the ledger in it without a pause, as a manager does while it launches.
A socket stands where the manager listens, and nobody reads from it: waking a manager that is busy must hold up nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_plugin import render
from tests.bench.table import Line

RUNS = 200
NODES = 1000
BUDGET = 0.5
"""Seconds."""
_BUSY = """\
import sys
from pathlib import Path
from slurm_plugin.ledger import Ledger

ledger = Ledger.open(Path(sys.argv[1]))
print("busy", flush=True)
while True:
    with ledger.batch():
        for number in range(200):
            ledger.event("launch", "asking for a machine", node=f"n-{number}", job=number)
"""


def starts(state_dir: Path, runs: int) -> list[float]:
    """Seconds from each start of ResumeProgram to its end. Raises ``RuntimeError`` where it recorded less than was asked of it."""
    told = state_dir.parent / "resume.json"
    jobs = [{"job_id": n, "nodes": f"n-{n}"} for n in range(1, NODES + 1)]
    told.write_text(json.dumps({"jobs": jobs}))
    environment = {"SLURM_CONF": str(state_dir.parent / "slurm.conf"), "SLURM_RESUME_FILE": str(told)}
    command = [str(render.Programs.beside_python().resume), f"n-[1-{NODES}]"]
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    until = time.monotonic() + 30
    while (found := len(list((state_dir / "requests").glob("[0-9]*.json")))) < runs:
        if time.monotonic() > until:
            raise RuntimeError(f"{found} of {runs} requests were recorded")
        time.sleep(0.1)
    return times


@contextlib.contextmanager
def site(folder: Path) -> Iterator[Path]:
    """A state directory with burst.yaml beside slurm.conf, and a manager's socket that nobody reads."""
    state_dir = folder / "state"
    state_dir.mkdir()
    (folder / "burst.yaml").write_text(f"cluster: bench\nstate_dir: {state_dir}\n")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as deaf:
        deaf.bind(str(state_dir / "manager.sock"))
        yield state_dir


@contextlib.contextmanager
def busy(ledger: Path) -> Iterator[None]:
    """Something commits to the ledger meanwhile."""
    with subprocess.Popen([sys.executable, "-c", _BUSY, str(ledger)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def lines(runs: int = RUNS) -> Iterator[Line]:
    """For the table: the slowest start, then the median."""
    for what in ("at rest", "beside a busy ledger"):
        with tempfile.TemporaryDirectory(prefix="bench-resume-") as name, site(Path(name)) as state_dir:
            beside = busy(state_dir / "ledger.db") if what != "at rest" else contextlib.nullcontext()
            with beside:
                times = starts(state_dir, runs)
        load = os.getloadavg()[0]
        yield Line(f"slowest of {runs} ResumePrograms, {what} (load {load:.0f})", max(times), "budget", BUDGET, 1.0)
        yield Line(f"  median, {what}", statistics.median(times), "budget", BUDGET, 1.0)


if __name__ == "__main__":
    for line in lines(*map(int, sys.argv[1:])):
        print(line, flush=True)
