"""The world that the manager acts on, in memory: a Slurm and a cloud with a clock of their own.

``Killed`` is raised at a chosen act, before or after it takes effect, as ``kill -9`` would.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.unit.manager.fake_cloud import FakeCloud
from tests.unit.manager.fake_slurm import FakeSlurm


class Killed(BaseException):
    """The manager was killed here."""


@dataclass
class Killer:
    """Counts acts; kills at the ``at``-th."""

    at: int = -1
    count: int = 0

    def act(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    """The outside: advance it with ``tick``."""

    def __init__(self, names: Sequence[str], state_dir: Path, seed: int = 0, idle_on_node_suspend: bool = True) -> None:
        self.clock = Clock()
        self.random = random.Random(seed)
        self.killer = Killer()
        self.state_dir = state_dir
        (state_dir / "requests").mkdir(parents=True, exist_ok=True)
        self.slurm = FakeSlurm(self, names, idle_on_node_suspend)
        self.cloud = FakeCloud(self)
        self.requests = 0

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.cloud.tick()
        self.slurm.tick()

    def request(self, kind: str, nodes: Iterable[str]) -> None:
        self.requests += 1
        path = self.state_dir / "requests" / f"{self.clock.now:.6f}-{self.requests}-{kind}.json"
        path.write_text(json.dumps({"kind": kind, "hostlist": ",".join(nodes), "time": self.clock.now}))
