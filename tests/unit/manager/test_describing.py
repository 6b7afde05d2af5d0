"""The manager asks clouds for the sizes of machines before its first pass, keeps them, and launches nothing that is too small."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import Offering
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.manager.describing import KEPT, Describing
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.say import Once
from tests.unit.manager.fake_cloud import FakeCloud
from tests.unit.manager.harness import Manager, policy
from tests.unit.manager.world import World


class Described(FakeCloud):
    """What its types have, by name; how often it was asked."""

    sizes: dict[str, MachineSize]
    asked = 0

    def machine_sizes(self, offerings: Collection[Offering]) -> dict[str, MachineSize]:
        self.asked += 1
        if self.unreachable:
            raise CloudUnavailable("sim does not answer")
        return {o.id: self.sizes[o.instance_type] for o in offerings if o.instance_type in self.sizes}


@pytest.fixture
def m(tmp_path: Path) -> Iterator[Manager]:
    world = World(("n1",), tmp_path)
    world.cloud = Described(world)
    world.cloud.sizes = {"t": MachineSize(1, 999, 1)}
    manager = Manager(world, policy(("n1",), ("a",)), tmp_path / "ledger.db")
    yield manager
    manager.close()


def describing(m: Manager) -> Describing:
    lanes = {"sim": Lane(m.world.cloud)}
    return Describing(tuple(m.rules.offerings.values()), lanes, m.ledger, Once(), clock=m.world.clock)


def test_nothing_too_small_is_launched_and_the_job_is_told_both_figures(m: Manager) -> None:
    part = describing(m)
    part.start()
    part.stop()
    job = m.world.slurm.submit(20)
    m.run(60)
    assert m.world.cloud.calls == 0
    assert "999 MB of memory where memory_mb is 1000" in m.world.slurm.job[job].record.comment
    larger = replace(m.rules.nodesets["spot"], shape=replace(m.rules.nodesets["spot"].shape, memory_mb=999))
    m.rules = replace(m.rules, nodesets={"spot": larger})
    m.close()
    m.start()
    m.run(400)
    assert m.world.slurm.job[job].record.states == {"COMPLETED"}, "once the nodeset says what the machine has"


def test_not_knowing_refuses_nothing(m: Manager) -> None:
    m.world.cloud.unreachable = True
    part = describing(m)
    part.look()
    m.world.cloud.unreachable = False
    job = m.world.slurm.submit(20)
    m.run(100)
    assert m.world.slurm.job[job].record.states == {"COMPLETED"}


def test_what_is_known_is_not_asked_again_for_a_week(m: Manager) -> None:
    assert isinstance(m.world.cloud, Described)
    for _ in range(3):
        describing(m).look()
    assert m.world.cloud.asked == 1
    m.world.clock.now += KEPT + 1
    describing(m).look()
    assert m.world.cloud.asked == 2
