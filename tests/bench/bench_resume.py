"""A thousand CLOUD nodes resumed by a real slurmctld on moto: wall time, calls to the cloud, Slurm's commands, memory, beside a reference.

python -m tests.bench.bench_resume [--latency SECONDS] [--rounds N] [--list NAME]

The reference is aws-parallelcluster-node's ResumeProgram (``resume_sides``). Both get the same jobs, nodes and server, in turns. The time
runs from the first start of ResumeProgram: to the end of the last one on the reference's side; on ours to the moment at which the ledger
knows every machine and each machine's tags tell its node, whichever is later. Needs root and Slurm; the reference needs PyPI.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud.local.host import require
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.ledger import Ledger
from slurm_plugin.local_cluster.cluster import COMMANDS
from tests.bench.resume_sides import COUNTED, NODES, REFERENCE, VERSION, ResumeCluster, install
from tests.bench.table import Line

JOB_LISTS: dict[str, tuple[tuple[int, int], ...]] = {
    "1-node": ((1000, 1),),
    "4-node": ((250, 4),),
    "mixed": ((400, 1), (100, 4), (20, 10)),
}
"""Jobs of so many nodes: together a thousand nodes each."""
PATIENCE = 120.0
BAR = 1 / 3


class Server:
    """``resume_server`` in its own process: a new one each time, for moto's subnet has 4,091 addresses and takes none back."""

    def __init__(self, latency: float, log: Path) -> None:
        """``latency``: seconds that each call takes besides."""
        self.command = [sys.executable, "-m", "tests.bench.resume_server", str(latency)]
        self.log = log

    def __enter__(self) -> Server:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.told: dict[str, str] = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=30)

    def report(self) -> dict[str, Any]:
        """``calls`` ([Unix seconds, name]), ``machines`` and ``nodes`` (how many are told by machines' tags)."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended: {self.log.read_text()[-2000:]}")
        return json.loads(line)


@dataclass(frozen=True)
class Found:
    """What one resume of all nodes took. Times in seconds, memory in bytes."""

    wall: float
    scontrol: int
    commands: int
    calls: Counter[str]
    memory: float
    cpu: float
    programs: tuple[float, ...]
    """How long each ResumeProgram ran."""


def resume(folder: Path, jobs: Sequence[tuple[int, int]], latency: float, python_path: Path | None) -> Found:
    """One side, once: the reference's where ``python_path`` is. Raises ``RuntimeError`` where it does not get all nodes up."""
    folder.mkdir(parents=True)
    with (
        Server(latency, folder / "server.log") as server,
        ResumeCluster(folder, server.told, python_path) as cluster,
    ):
        cluster.run("scontrol", "update", "PartitionName=q", "State=DOWN")
        for count, nodes in jobs:
            cluster.submit("sleep 60", f"--array=1-{count}", f"--nodes={nodes}", "--exclusive")
        if python_path is None:
            cluster.wait_for((cluster.config.state_dir / "manager.sock").exists, 30, "the manager", alive="manager")
        cluster.run("scontrol", "update", "PartitionName=q", "State=UP")
        ended = _wait(cluster, server, python_path is None)
        runs = cluster.programs.runs()
        began = min(r["began"] for r in runs if "began" in r)
        report = server.report()
        own = [r for r in runs if "ended" in r]
        memory, cpu = max(r["memory"] for r in own), sum(r["cpu"] for r in own)
        if python_path is None:
            manager = cluster.daemons.process("manager")
            assert manager is not None
            memory, cpu = _peak(manager.pid), cpu + _spent(manager.pid)
        elif (addressed := _addressed(cluster)) < NODES:
            raise RuntimeError(f"{REFERENCE}: {addressed} of {NODES} nodes came: {cluster.programs.folder}/resume.log")
        return Found(
            wall=ended - began,
            scontrol=cluster.programs.commands(began, ended, "scontrol"),
            commands=cluster.programs.commands(began, ended, *COUNTED),
            calls=Counter(name for at, name in report["calls"] if began <= at <= ended),
            memory=memory,
            cpu=cpu,
            programs=tuple(r["took"] for r in own),
        )


def _wait(cluster: ResumeCluster, server: Server, ours: bool) -> float:
    """When all nodes were resumed, Unix seconds."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(1.0)
        report = server.report()
        if report["machines"] < NODES:
            continue
        if ours:
            if report["nodes"] < NODES:
                continue
            with contextlib.closing(Ledger.open_readonly(cluster.config.state_dir / "ledger.db")) as ledger:
                known = [e.time for e in ledger.events(limit=10 * NODES) if e.kind == "launched"]
            if len(known) >= NODES:
                changes = [at for at, name in report["calls"] if name.startswith("Create")]
                return max(*known, *changes)
        else:
            runs = cluster.programs.runs()
            ended = [r["ended"] for r in runs if "ended" in r]
            if ended and 2 * len(ended) == len(runs):
                return max(ended)
    raise RuntimeError(f"not all nodes were resumed within {PATIENCE:g} s: {server.report()['machines']} machines")


def _addressed(cluster: ResumeCluster) -> int:
    text = cluster.run("scontrol", "--oneliner", "show", "nodes")
    return sum(" NodeAddr=q-dy-c-" not in line for line in text.splitlines() if line.startswith("NodeName=q-dy"))


def _peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024.0 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def _spent(pid: int) -> float:
    """Processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure(
    folder: Path, name: str, latency: float, rounds: int, reference: Path | None
) -> tuple[list[Found], list[Found]]:
    """``rounds`` times both sides in turns: ours, and the reference's (none of these where ``reference`` is None)."""
    ours: list[Found] = []
    theirs: list[Found] = []
    for number in range(rounds):
        if reference is not None:
            theirs.append(resume(folder / f"theirs-{name}-{number}", JOB_LISTS[name], latency, reference))
        ours.append(resume(folder / f"ours-{name}-{number}", JOB_LISTS[name], latency, None))
    return ours, theirs


def compared(name: str, latency: float, ours: Sequence[Found], theirs: Sequence[Found]) -> Iterator[Line | str]:
    """Lines of the table for one list of jobs; without a reference, our own figures."""
    what = f"{NODES} nodes resumed, {name} jobs" + (f", {latency * 1000:.0f} ms a call" if latency else "")
    if not theirs:
        yield f"{what}: ours alone: {shown(ours)}"
        return
    against = f"{REFERENCE} {VERSION}"
    yield Line(what, _median(ours, "wall"), against, _median(theirs, "wall"), BAR)
    forks, of = _median(ours, "scontrol"), _median(theirs, "scontrol")
    met = "met" if forks <= of * BAR else "MISSED"
    yield f"{'  scontrol forks':54} {forks:10.0f}  {forks / of:7.2f} x {against:30} {of:10.0f}  <= {BAR:.2g} {met}"
    yield f"  ours:   {shown(ours)}"
    yield f"  theirs: {shown(theirs)}"


def shown(found: Sequence[Found]) -> str:
    """Medians, and the least and the longest wall time."""
    walls = sorted(f.wall for f in found)
    calls = ", ".join(f"{count} {name}" for name, count in sorted(found[-1].calls.items()))
    return (
        f"{_median(found, 'wall'):.2f} s ({walls[0]:.2f} to {walls[-1]:.2f}); {_median(found, 'scontrol'):.0f} scontrol, "
        f"{_median(found, 'commands'):.0f} commands of Slurm in all; {sum(found[-1].calls.values())} calls ({calls}); "
        f"peak memory {_median(found, 'memory') / (1 << 20):.0f} MiB; ResumeProgram at most {max(max(f.programs) for f in found):.2f} s"
    )


def _median(found: Sequence[Found], name: str) -> float:
    return statistics.median(float(getattr(f, name)) for f in found)


def lines(
    latencies: Sequence[float] = (0.0, 0.1), rounds: int = 3, names: Sequence[str] = tuple(JOB_LISTS)
) -> Iterator[Line | str]:
    """For the table."""
    try:
        require(COMMANDS)
    except LocalCloudError as error:
        yield f"{NODES} nodes resumed: not measured: {error}"
        return
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="bench-resume-") as name:
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(key, "testing")
        folder = Path(name)
        reference: Path | None = folder / "reference"
        why = install(folder / "reference")
        if why is not None:
            yield f"the reference {REFERENCE} {VERSION} can't be had, so there is no ratio: {why}"
            reference = None
        for latency in latencies:
            for jobs in names:
                ours, theirs = measure(folder / f"{latency}", jobs, latency, rounds, reference)
                yield from compared(jobs, latency, ours, theirs)


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, action="append", help="seconds that each call to EC2 takes besides")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--list", choices=tuple(JOB_LISTS), action="append")
    given = parser.parse_args()
    for line in lines(given.latency or (0.0, 0.1), given.rounds, given.list or tuple(JOB_LISTS)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
