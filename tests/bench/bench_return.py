"""From a notice to the program's first line in its next attempt: spotburst, Slurm alone, and the usual ``scontrol requeue`` in a signal handler.

python -m tests.bench.bench_return [--rounds N]

All three run one program, in one cluster, with idle nodes to go on: nobody waits for a machine. Slurm alone is asked to requeue the job at
the notice, and so is its own handler's job, by the signal that a watcher of notices would send; for both the manager is ended, for it would help. A
requeue of theirs takes two minutes, so several are measured at the same time. Then spotburst once more, where all other nodes are off and take
``BOOT`` seconds to boot. Needs root and Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.cloud.local.host import require
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.cluster import COMMANDS, LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.local_cluster.sweep import sweep
from tests.bench.table import Line
from tests.cluster.training import Training

AT_ONCE = 4
"""Jobs of each of the two slow kinds side by side; two nodes more are idle."""
NODES = 2 * AT_ONCE + 2
PATIENCE = 400.0
BARS = {"median": 2.0, "worst": 5.0}
"""Seconds from the commit to the first line on a prepared node."""
BAR = 1 / 20
BOOT = 10.0
BEYOND_BOOT = 3.0
"""Seconds from the replacement's boot, which ends with the start of its slurmd, to the first line, where no node is idle."""

PROGRAM = """\
import time

print(f"first {time.time()}", flush=True)

import os, signal, sys
import job_wrapper

path = os.path.join(os.environ.get("SPOTBURST_STATE_DIR", sys.argv[1]), f"number-{os.environ['SLURM_JOB_ID']}")
number = int(open(path).read()) if os.path.exists(path) else 0


def save(*_):
    with open(path + ".new", "w") as file:
        file.write(str(number))
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def leave(*_):
    save()
    print(f"committed {time.time()}", flush=True)
    sys.exit(0)


signal.signal(signal.SIGUSR1, leave)
job_wrapper.on_request(save)
while True:
    number += 1
    job_wrapper.requested()
    time.sleep(0.02)
"""
JOB = """\
#!/bin/bash
#SBATCH --requeue --open-mode=append
srun $WRAPPER {python} {program} {folder}
"""
HANDLER = """\
#!/bin/bash
#SBATCH --requeue --open-mode=append --signal=B:USR1@60
again() {{
    kill -USR1 $program
    wait $program
    echo "requeued $(date +%s.%N)"
    scontrol requeue $SLURM_JOB_ID
}}
trap again USR1
{python} {program} {folder} &
program=$!
wait $program
sleep 60
"""
WRAPPER = "spotburst run --interval 1m --state-dir /run/state --"


@dataclass(frozen=True)
class Return:
    """Unix seconds of one way back; ``commit`` None where nothing was committed."""

    notice: float
    commit: float | None
    requeue: float
    first: float
    booted: float
    """When the machine that booted last did so."""

    def parts(self) -> tuple[float | None, ...]:
        """Seconds: notice to commit, commit (or notice) to requeue, requeue to first line, commit to first line, notice to first line."""
        commit = self.commit
        return (
            None if commit is None else commit - self.notice,
            self.requeue - (self.notice if commit is None else commit),
            self.first - self.requeue,
            None if commit is None else self.first - commit,
            self.first - self.notice,
        )


PARTS = ("notice-commit", "commit-requeue", "requeue-line", "commit-line", "notice-line")


@dataclass
class Runner:
    """The cluster, and what its jobs print."""

    cluster: LocalCluster
    folder: Path

    def script(self, name: str, text: str) -> Path:
        """A job script."""
        program = self.folder / "program.py"
        program.write_text(PROGRAM)
        path = self.folder / name
        path.write_text(text.format(python=sys.executable, program=program, folder=self.folder))
        return path

    def said(self, job: str, word: str) -> list[float]:
        """The times that a job has printed after that word."""
        lines = [line.split() for line in self.cluster.output(job).splitlines()]
        return [float(line[1]) for line in lines if len(line) == 2 and line[0] == word]

    def until(self, job: str, starts: int) -> float:
        """When its program printed its first line for the ``starts``-th time. Raises ``TimeoutError``."""
        self.cluster.wait_for(
            lambda: len(self.said(job, "first")) >= starts, PATIENCE, f"start {starts} of job {job}", every=0.05
        )
        return self.said(job, "first")[starts - 1]

    def idle(self) -> list[str]:
        """Nodes that a job could start on now."""
        return [n.name for n in self.cluster.client().nodes() if n.up and n.has("IDLE") and not n.has("DRAIN")]

    def booted(self) -> float:
        """When the last machine's boot ended."""
        notes = (self.cluster.config.state_dir / "local" / "instances").glob("*/booted.json")
        return max(float(json.loads(note.read_text())["time"]) for note in notes)

    def prepare(self, count: int) -> None:
        """Wait until that many nodes are idle; powers up what is off."""
        off = [n.name for n in self.cluster.client().nodes() if n.has("POWERED_DOWN") and not n.has("POWERING_UP")]
        if len(self.idle()) < count and off:
            self.cluster.client().update_nodes(off, state="power_up")
        self.cluster.wait_for(lambda: len(self.idle()) >= count, 180, f"{count} idle nodes", every=0.3)


def slow_ways(runner: Runner, rounds: int) -> tuple[list[Return], list[Return]]:
    """Slurm alone, and the handler: ``rounds`` returns of each."""
    alone: list[Return] = []
    handled: list[Return] = []
    job, handler = runner.script("job.sh", JOB), runner.script("handler.sh", HANDLER)
    cluster = runner.cluster
    runner.prepare(NODES)
    cluster.kill_manager()
    while (left := min(AT_ONCE, rounds - len(alone))) > 0:
        plain = [cluster.submit(job, env={"WRAPPER": ""}) for _ in range(left)]
        trapped = [cluster.submit(handler) for _ in range(left)]
        for one in plain + trapped:
            runner.until(one, 1)
        time.sleep(2)
        told: dict[str, tuple[float, float]] = {}
        for one in plain:
            began = time.time()
            cluster.run("scontrol", "requeue", one)
            told[one] = (began, began)
        for one in trapped:
            told[one] = (time.time(), 0.0)
            cluster.run("scancel", "--signal=USR1", "--batch", one)
        alone += [Return(told[one][0], None, told[one][1], runner.until(one, 2), 0.0) for one in plain]
        for one in trapped:
            again = runner.until(one, 2)
            handled.append(
                Return(told[one][0], runner.said(one, "committed")[0], runner.said(one, "requeued")[0], again, 0.0)
            )
        cluster.run("scancel", *plain, *trapped)
        cluster.wait_for(lambda: not cluster.run("squeue", "-h").strip(), 90, "the jobs to end")
    cluster.start_manager()
    return alone, handled


def our_way(runner: Runner, rounds: int, ready: int = 1) -> list[Return]:
    """One job under the wrapper, taken from its node again and again while ``ready`` others are idle."""
    found: list[Return] = []
    cluster = runner.cluster
    cluster.wait_for((cluster.config.state_dir / "manager.sock").exists, 30, "the manager", alive="manager")
    runner.prepare(ready + 1 if ready else 0)
    job = Training(cluster, 0, 0.0, runner.folder)
    job.job = cluster.submit(runner.script("job.sh", JOB), env={"WRAPPER": WRAPPER})
    runner.until(job.job, 1)
    for number in range(1, rounds + 1):
        runner.prepare(ready)
        cluster.wait_for(lambda: bool(ready) or not runner.idle(), 180, "no idle node", every=0.3)
        # A notice comes at any moment of an attempt, and of the watcher's round.
        time.sleep(2.0 + random.random())
        notice = time.time()
        cluster.cloud().reclaim(job.node())
        first = runner.until(job.job, number + 1)
        attempt = job.attempts()[number - 1]
        if attempt.urgent_commit is None or attempt.ended is None:
            raise RuntimeError(f"attempt {number} left without a commit: {attempt}\n{job.output[-2000:]}")
        found.append(Return(notice, attempt.urgent_commit, attempt.ended, first, runner.booted()))
        cluster.wait_for(lambda number=number: len(job.attempts()) > number, 60, "the claim")
    cluster.run("scancel", job.job)
    return found


def row(what: str, found: Sequence[Return]) -> str:
    """Medians and worst of the parts."""
    cells = []
    for values in zip(*(f.parts() for f in found), strict=True):
        times = [v for v in values if v is not None]
        cells.append(f"{statistics.median(times):7.2f} ({max(times):6.2f})" if times else f"{'-':>16}")
    return f"{what:32} " + "  ".join(cells)


def lines(rounds: int = 20) -> Iterator[Line | str]:
    """The table: one row for each of the three, seconds, median (worst); then our ratios and bars."""
    try:
        require(COMMANDS)
    except LocalCloudError as error:
        yield f"notice to running again: not measured: {error}"
        return
    with tempfile.TemporaryDirectory(prefix="bench-return-") as name:
        settings = default_settings(NODES, suspend_time=36000, notice=30)
        settings["recovery"] = {"max_attempts": 10 * rounds}
        with LocalCluster(Path(name) / "cluster", settings) as cluster:
            runner = Runner(cluster, Path(name))
            alone, handled = slow_ways(runner, rounds)
            ours = our_way(runner, rounds)
        cold = default_settings(NODES, suspend_time=30, notice=30, boot_time=BOOT) | {"recovery": settings["recovery"]}
        with LocalCluster(Path(name) / "cold", cold) as cluster:
            booted = our_way(Runner(cluster, Path(name)), rounds, ready=0)
    yield f"notice to running again, {rounds} times, load {os.getloadavg()[0]:.0f}; seconds, median (worst)"
    yield f"{'':32} " + "  ".join(f"{part:>16}" for part in PARTS)
    yield row("spotburst", ours)
    yield row(f"the same, {BOOT:.0f} s to boot", booted)
    yield row("Slurm alone", alone)
    yield row("scontrol requeue in a handler", handled)
    whole = statistics.median(r.parts()[4] or 0.0 for r in ours)
    for against, found, bar in (("Slurm alone", alone, BAR), ("requeue in a handler", handled, None)):
        yield Line("notice to first line", whole, against, statistics.median(r.parts()[4] or 0.0 for r in found), bar)
    since_commit = [r.parts()[3] or 0.0 for r in ours]
    for what, value in (("median", statistics.median(since_commit)), ("worst", max(since_commit))):
        yield Line(f"commit to first line, prepared node, {what}", value, f"{BARS[what]:g} s", BARS[what], 1.0)
    beyond = [r.first - r.booted for r in booted]
    for what, value in (("median", statistics.median(beyond)), ("worst", max(beyond))):
        yield Line(
            f"end of the boot to first line, no node idle, {what}", value, f"{BEYOND_BOOT:g} s", BEYOND_BOOT, 1.0
        )


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    sweep()
    for line in lines(parser.parse_args().rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
