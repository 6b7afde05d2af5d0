"""A manager over the simulated world, that can be killed and started again."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from slurm_plugin.actions import Action
from slurm_plugin.cloud.provider import InstanceState, Market, Offering
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.apply import Applier
from slurm_plugin.manager.booting import Booting
from slurm_plugin.manager.lane import Answer, Lane
from slurm_plugin.manager.launch import Launcher
from slurm_plugin.manager.observe import Observer
from slurm_plugin.manager.say import Once
from slurm_plugin.prices import PriceTable
from slurm_plugin.reconcile import NodeSetFacts, Policy, Shape, View, decide
from tests.unit.manager.world import Killed, Killer, World


def policy(names: tuple[str, ...], zones: tuple[str, ...] = ("a", "b"), **changes: Any) -> Policy:
    offerings = tuple(Offering("sim", "r", zone, "t", Market.SPOT) for zone in zones)
    facts = NodeSetFacts("spot", Shape(1, 1000, 1, frozenset({"spot"})), offerings, frozenset({"sim"}))
    return Policy(
        nodesets={"spot": facts},
        nodeset_of=dict.fromkeys(names, "spot"),
        offerings={o.id: o for o in offerings},
        **changes,
    )


class FakeReach:
    """Silence as the test sets it."""

    def __init__(self) -> None:
        self.silent: dict[str, float] = {}
        self.suspect = False

    def watch(self, targets: dict[str, tuple[str, int]], doubted: Collection[str] = ()) -> None:
        self.silent = {n: s for n, s in self.silent.items() if n in targets}

    def silent_since(self) -> dict[str, float]:
        return dict(self.silent)

    def own_network_suspect(self) -> bool:
        return self.suspect


class BootReach:
    """The slurmd of each machine that has booted takes connections, whether slurmctld hears from it or not."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listening: dict[str, float] = {}

    def watch(self, targets: dict[str, tuple[str, int]], doubted: Collection[str] = ()) -> None:
        now = self.world.clock()
        at = {m.address: m.state(now) for m in self.world.cloud.machine.values()}
        found = {n for n, (address, _) in targets.items() if at.get(address) is InstanceState.RUNNING}
        self.listening = {n: self.listening.get(n, now) for n in found}

    def answering_since(self) -> dict[str, float]:
        return dict(self.listening)


class SteadyLane(Lane):
    """The world's clock stands still while a machine that is busy keeps the call's thread waiting."""

    def wait(self, future: Future[Answer], timeout: float) -> Answer:
        return super().wait(future, 120.0)


class KillableLedger(Ledger):
    """Dies before and after each write."""

    killer = Killer()

    def _do(self, sql: str, *values: Any) -> int:
        self.killer.act()
        done = super()._do(sql, *values)
        self.killer.act()
        return done


class Manager:
    """What ``Loop`` puts together, over the simulated world. ``step`` is one pass and one second."""

    def __init__(self, world: World, rules: Policy, path: Path, *, prices: PriceTable | None = None) -> None:
        self.world, self.rules, self.path, self.prices = world, rules, path, prices
        self.reach = FakeReach()
        self.deaths = 0
        self.actions: tuple[Action, ...] = ()
        self.start()

    def start(self) -> None:
        self.ledger = KillableLedger.open(self.path, self.world.clock)
        self.ledger.killer = self.world.killer
        self.ledger._db.execute("PRAGMA synchronous=OFF")  # it is the process that dies here, not the machine
        once = Once()
        lanes = {"sim": SteadyLane(self.world.cloud)}
        booting = Booting(self.world.slurm, BootReach(self.world), once)  # type: ignore[arg-type]
        self.observer = Observer(
            self.rules, self.world.slurm, lanes, self.ledger, self.world.state_dir,
            once=once, reach=self.reach, booting=booting, prices=self.prices, clock=self.world.clock,  # type: ignore[arg-type]
        )  # fmt: skip
        launcher = Launcher(self.rules, lanes, self.ledger, lambda *_: {}, once)
        self.applier = Applier(self.world.slurm, self.ledger, launcher, once, self.world.clock)

    def look(self) -> View:
        return self.observer.look()

    def step(self, seconds: float = 1.0) -> None:
        try:
            view = self.look()
            self.actions = decide(view)
            self.applier.apply(self.actions, view)
        except Killed:
            self.deaths += 1
            self.close()
            self.start()
        self.world.tick(seconds)

    def close(self) -> None:
        self.observer.close()
        self.ledger.close()

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.step()
