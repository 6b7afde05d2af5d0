"""The faults of ``bench_chaos``: which, when and how hard comes from a seed alone; what each strikes depends on where the job runs then."""

from __future__ import annotations

import contextlib
import errno
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from job_wrapper.errors import StoreError
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.timeline import Attempt, attempts
from tests.bench.faults import Due
from tests.cluster.training import Training

SILENT_DOWN = 8.0
"""Seconds after which the manager sets a node down that it does not hear of; a cut that is mended before may pass unnoticed."""


@dataclass(frozen=True)
class Planned:
    """One fault to come. ``first`` and ``second`` (0 to 1) say how hard; it is struck ``pause`` seconds after the one before, or after its end."""

    kind: str
    first: float
    second: float
    pause: float
    after_recovery: bool


@dataclass(frozen=True)
class Struck:
    """What was done. ``moves``: the attempt that ran, if any, can't go on, so another one has to come."""

    text: str
    moves: bool = False
    lasts: float = 0.0
    """Seconds until it is undone."""


@dataclass
class Stage:
    """The run under fire: reads its log on and on, and undoes what is due. One thread uses it."""

    cluster: LocalCluster
    job: Training
    disk: Path
    """A small file system; the store is a folder in it."""
    seen: dict[int, Entry] = field(default_factory=dict)
    """Every entry that the log has ever shown, by its number."""
    due: Due = field(default_factory=Due)

    @property
    def store(self) -> Path:
        """Where the cluster believes it."""
        return self.disk / "store"

    def look(self) -> None:
        """Undo what is due; read what the log has got since the last look."""
        for kind in self.due.overdue():
            self.due.undo(kind)
        with contextlib.suppress(StoreError):
            log = RunLog(open_store(self.cluster.config.checkpoints.uri, prove=False), self.job.run)
            for seq in log.seqs():
                if seq not in self.seen:
                    self.seen[seq] = log.read(seq)

    def entries(self) -> list[Entry]:
        """The log as far as it was seen."""
        return [self.seen[seq] for seq in sorted(self.seen)]

    def newest(self) -> Attempt:
        """The newest attempt that was seen."""
        return attempts(self.entries())[-1]

    def ended(self) -> bool:
        """Whether the log says that the run is over."""
        return bool(self.seen) and self.seen[max(self.seen)].kind is Kind.END

    def watch(self, seconds: float) -> Iterator[None]:
        """Look five times a second for that long; yields after each look."""
        until = time.monotonic() + seconds
        while True:
            self.look()
            yield
            if time.monotonic() >= until:
                return
            time.sleep(0.2)

    def target(self) -> tuple[str, bool]:
        """The node to strike, and whether the newest attempt is on it: its own while that has a machine, else any that has one."""
        for _ in self.watch(120):
            running = [i.node for i in self.cluster.cloud().instances() if i.state is InstanceState.RUNNING]
            node = self.newest().node
            if node in running:
                return node, True
            if running:
                return running[0], False
        raise TimeoutError(f"no machine for 120 s\n{self.cluster.diagnostics()}")


Fault = Callable[[Stage, float, float], Struck]


def notice(stage: Stage, first: float, second: float) -> Struck:
    """The cloud takes the node back."""
    seconds = 10 + 20 * first
    node, moves = stage.target()
    stage.cluster.cloud().reclaim(node, seconds)
    return Struck(f"notice of {seconds:.0f} s to {node}", moves)


def loss(stage: Stage, first: float, second: float) -> Struck:
    """The machine is gone without a word."""
    node, moves = stage.target()
    stage.cluster.cloud().vanish(node)
    return Struck(f"{node} lost without notice", moves)


def cut(stage: Stage, first: float, second: float) -> Struck:
    """The node is off the network; in half of all cases it comes back before it is given up."""
    node, moves = stage.target()
    cloud = stage.cluster.cloud()
    machine = cloud.cut(node).instance_id
    if first < 0.5:
        return Struck(f"{node} cut off the network", moves)

    def heal() -> None:
        with contextlib.suppress(LocalCloudError):  # it may have ended meanwhile
            cloud.heal(machine)

    lasts = 1 + second * SILENT_DOWN / 2
    stage.due.later(f"cut {machine}", lasts, heal)
    return Struck(f"{node} cut off the network for {lasts:.1f} s", lasts=lasts)


def preemption(stage: Stage, first: float, second: float) -> Struck:
    """A job of higher priority takes the node."""
    stage.due.undo("slurmctld")
    node, moves = stage.target()
    options = ("--partition=urgent", f"--nodelist={node}", "--job-name=urgent")
    other = stage.cluster.submit(f"srun sleep {1 + first:.1f}", *options)
    return Struck(f"preempted on {node} by job {other}", moves)


def manager(stage: Stage, first: float, second: float) -> Struck:
    """The manager is killed, and started again later."""
    stage.due.manager_away(stage.cluster, 6 * first)
    return Struck(f"manager killed, away for {6 * first:.1f} s", lasts=6 * first)


def slurmctld(stage: Stage, first: float, second: float) -> Struck:
    """slurmctld ends, in order or not, and is started again later."""
    number = signal.SIGTERM if second < 0.5 else signal.SIGKILL
    stage.due.slurmctld_away(stage.cluster, number, 4 * first)
    return Struck(f"slurmctld ended by {number.name}, away for {4 * first:.1f} s", lasts=4 * first)


def store(stage: Stage, first: float, second: float) -> Struck:
    """Whatever is asked of the store fails: its folder is not where it was. What is being written into it goes on, and can't be named."""
    lasts = 1 + 7 * first
    stage.due.store_away(stage.store, lasts)
    return Struck(f"store fails for {lasts:.1f} s", lasts=lasts)


def full(stage: Stage, first: float, second: float) -> Struck:
    """The store's file system has no byte left."""
    stage.due.undo("full")
    filler = stage.disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    lasts = 1 + 7 * first
    stage.due.later("full", lasts, filler.unlink)
    return Struck(f"store's disk full for {lasts:.1f} s", lasts=lasts)


FAULTS: dict[str, Fault] = {f.__name__: f for f in (notice, loss, cut, preemption, manager, slurmctld, store, full)}


def plan(seed: int, count: int) -> list[Planned]:
    """``count`` faults, all kinds equally often: the kinds in a random order, then again in another one."""
    chance = random.Random(seed)
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += chance.sample(list(FAULTS), len(FAULTS))
    return [
        Planned(kind, chance.random(), chance.random(), 4 * chance.random(), chance.random() < 0.7)
        for kind in kinds[:count]
    ]
