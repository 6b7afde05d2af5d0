"""The manager is killed at each call in turn: before and after each write to ledger, journal and EC2. No machine stays unknown, none is double.

The manager is the real one (observer, decisions, launcher, ledger on disk); Slurm is the simulated one of tests/unit/manager; EC2 is moto.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud import tags
from slurm_plugin.cloud.aws import names
from slurm_plugin.cloud.aws.cloud import AwsCloud
from slurm_plugin.cloud.aws.journal import Journal, Note
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import IntentState
from slurm_plugin.manager.lane import Lane
from slurm_plugin.reconcile import NodeSetFacts, Policy, Shape
from tests.fixtures.ec2_stage import Ec2Stage
from tests.unit.manager.fake_cloud import FakeCloud, Machine
from tests.unit.manager.harness import Manager
from tests.unit.manager.world import Killed, Killer, World

NODES = ("spot-1", "spot-2", "spot-3", "spot-4")


class Dying(Killer):
    """Once dead, nothing is done any more, in whatever thread, until a new process begins."""

    dead = False

    def act(self) -> None:
        if self.dead:
            raise Killed
        try:
            super().act()
        except Killed:
            self.dead = True
            raise


class KillableJournal(Journal):
    killer: Killer

    def save(self, note: Note) -> None:
        self.killer.act()
        super().save(note)
        self.killer.act()


class Patient(Lane):
    """A pass waits for a server that a busy machine does not let answer at once: without its answer it would do other things."""

    def wait(self, future: Any, timeout: float) -> Any:
        return super().wait(future, timeout + 60.0)


class MotoCloud(FakeCloud):
    """What the simulated Slurm sees of the machines: moto's own records."""

    def __init__(self, world: World, stage: Ec2Stage) -> None:
        super().__init__(world)
        self.stage = stage

    def serving(self, node: str) -> Machine | None:
        for instance in self.stage.server.living({tags.CLUSTER: "test"}):
            name = names.read(self.stage.server.tags(instance))
            born = self.stage.server.born.get(instance.id)  # None: the call that makes it goes on
            if name is not None and name[1] == node and born is not None:
                return Machine(None, instance.id, born, born, 0.0)  # type: ignore[arg-type]
        return None

    def living(self, node: str | None = None) -> list[Machine]:
        found = (self.serving(name) for name in (NODES if node is None else (node,)))
        return [m for m in found if m is not None]


class AwsManager(Manager):
    """The harness's manager with aws in place of the simulated cloud. ``start`` is what a new process does."""

    def __init__(self, world: World, stage: Ec2Stage, path: Path) -> None:
        self.stage = stage
        offerings = tuple(stage.offering(zone=zone) for zone in stage.config.subnets)
        super().__init__(world, _policy(offerings), path)

    def start(self) -> None:
        self.world.killer.dead = False  # type: ignore[attr-defined]
        super().start()
        # A transaction is there as a whole or not at all: its two ends are what a kill can tell apart.
        self.ledger.killer = Killer()
        _die_at_transactions(self.ledger, self.world.killer)
        self.stage.restart()
        provider = self.stage.provider
        provider.clock = self.world.clock
        journal = KillableJournal(provider.journal.folder)
        journal.killer = self.world.killer
        provider.journal = journal
        _make_killable(provider, self.world.killer)
        self.observer.lanes = {"ec2": Patient(provider)}
        self.applier.launcher.lanes = self.observer.lanes


def _die_at_transactions(ledger: Ledger, killer: Killer) -> None:
    batch = ledger.batch

    @contextmanager
    def killable() -> Iterator[None]:
        outermost = ledger._depth == 0
        if outermost:
            killer.act()
        with batch():
            yield
        if outermost:
            killer.act()

    ledger.batch = killable  # type: ignore[method-assign]


def _make_killable(provider: AwsCloud, killer: Killer) -> None:
    send = provider.ec2.send

    def killable(timeout: float, operation: str, members: dict[str, Any]) -> dict[str, Any]:
        if operation.startswith("describe"):
            return send(timeout, operation, members)
        killer.act()
        answer = send(timeout, operation, members)
        killer.act()
        return answer

    provider.ec2.send = killable  # type: ignore[method-assign]


def _policy(offerings: tuple[Offering, ...]) -> Policy:
    facts = NodeSetFacts("spot", Shape(1, 1000, 1, frozenset({"spot"})), offerings, frozenset({"ec2"}))
    return Policy(
        nodesets={"spot": facts},
        nodeset_of=dict.fromkeys(NODES, "spot"),
        offerings={o.id: o for o in offerings},
    )


@pytest.fixture
def stages(ec2: Ec2Stage, tmp_path: Path) -> Iterator[Any]:
    """Makes a manager over an empty EC2, with a folder of its own."""
    made: list[AwsManager] = []

    def make(kill_at: int) -> AwsManager:
        ec2.server.reset()
        ec2.folder = tmp_path / f"s{kill_at}"
        world = World(NODES, ec2.folder, seed=1)
        world.clock.now = time.time()
        world.killer = Dying(at=kill_at)
        world.cloud = MotoCloud(world, ec2)
        manager = AwsManager(world, ec2, ec2.folder / "ledger.db")
        made.append(manager)
        return manager

    yield make
    for manager in made:
        manager.close()


def settle(manager: AwsManager, passes: int = 14) -> None:
    """A gang of three and a job of one; passes until both run, or for so long."""
    manager.world.slurm.submit(10_000, nodes=3)
    manager.world.slurm.submit(10_000)
    for _ in range(passes):
        manager.step(3.0)
        if len(manager.world.cloud.living()) == 4 and all(
            i.state is IntentState.LIVE for i in manager.ledger.intents()
        ):
            break
    manager.step(3.0)


def check(manager: AwsManager) -> None:
    """Every machine that runs is some open intent's, under one node, and every node has one."""
    living = manager.stage.living()
    assert sorted(living.values()) == sorted(NODES), "a node has no machine, or two"
    intents = {i.instance_id: i for i in manager.ledger.intents() if i.state is IntentState.LIVE}
    assert {i: n.node for i, n in intents.items()} == living, "a machine that the ledger does not know"
    assert Counter(i.node for i in intents.values()).most_common(1)[0][1] == 1


def test_undisturbed_a_gang_and_a_job_take_two_fleets(stages: Any) -> None:
    manager = stages(-1)
    settle(manager)
    check(manager)
    assert manager.stage.server.calls.count("CreateFleet") == 2
    assert manager.stage.server.calls.count("CreateLaunchTemplate") == 1


def test_killed_at_any_call_of_a_launch(stages: Any) -> None:
    manager = stages(-1)
    settle(manager)
    acts = manager.world.killer.count
    assert acts > 25, acts
    for at in range(1, acts + 1):
        manager = stages(at)
        settle(manager)
        assert manager.deaths == 1, at
        check(manager)
        made = len(manager.stage.server.instances())
        assert made == 4, f"killed at {at}: {made} machines were made for 4 nodes"


def end_all(manager: AwsManager) -> None:
    """Slurm powers all nodes down; passes until nothing runs and nothing is open, or for so long."""
    manager.world.slurm.job.clear()
    for node in manager.world.slurm.node.values():
        node.flags.add("POWER_DOWN")
    for _ in range(20):
        manager.step(5.0)
        if not manager.ledger.intents() and not manager.stage.living():
            break


def test_killed_while_it_ends_machines(stages: Any) -> None:
    """The same for their end: whatever call it died at, all is ended, and nothing is left open."""
    acts, at = 1, 0
    while at <= acts:
        manager = stages(-1)
        settle(manager)
        manager.world.killer.count, manager.world.killer.at = 0, at
        end_all(manager)
        assert manager.stage.living() == {}, at
        assert manager.ledger.intents() == (), at
        if at == 0:
            acts = manager.world.killer.count
        at += 1
    assert acts > 5


@pytest.mark.parametrize("seed", range(6))
def test_killed_while_ec2_loses_answers_and_lists_late(stages: Any, seed: int) -> None:
    """The worst together: an answer is lost, machines are listed late, tags are refused for a while, and the manager dies."""
    dice = random.Random(seed)
    manager = stages(dice.randint(1, 25))
    faults = manager.stage.server.faults
    faults.lose, faults.lag, faults.throttle = 1, 0.2, dice.randint(0, 2)
    faults.errors += [("CreateTags", 500, "InternalError", "An internal error has occurred")] * dice.randint(0, 2)
    settle(manager, passes=40)
    check(manager)
    assert len(manager.stage.server.instances()) == 4
