"""A job of two nodes over the simulated Slurm and cloud: bought in one zone, completed there, or moved as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import Launched, LaunchRequest, RefusalKind, Refused
from tests.unit.manager.fake_cloud import FakeCloud
from tests.unit.manager.harness import Manager, policy
from tests.unit.manager.world import World

NAMES = ("n1", "n2", "n3", "n4")


class Zoned(FakeCloud):
    """Has nothing in the zones that are ``full``."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.full: set[str] = set()

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        there = [r for r in requests if r.offering.zone not in self.full]
        made = {a.launch_id: a for a in super().launch(there)}
        refused = [Refused(r.launch_id, RefusalKind.NO_CAPACITY, "Full", r.offering.zone) for r in requests]
        return [made.get(a.launch_id, a) for a in refused]


@pytest.fixture
def m(tmp_path: Path) -> Iterator[Manager]:
    world = World(NAMES, tmp_path)
    world.cloud = Zoned(world)
    manager = Manager(world, policy(NAMES), tmp_path / "ledger.db")
    yield manager
    manager.close()


def cloud(m: Manager) -> Zoned:
    assert isinstance(m.world.cloud, Zoned)
    return m.world.cloud


def until(m: Manager, true: Callable[[], bool], seconds: int, watched: int = 0) -> None:
    """``watched``: a job that must never run in two zones."""
    for _ in range(seconds):
        if true():
            return
        m.step()
        record = m.world.slurm.job[watched].record if watched else None
        if record is not None and record.running:
            zones = {found.request.offering.zone for n in record.nodes if (found := cloud(m).serving(n)) is not None}
            assert len(zones) < 2
    raise AssertionError(f"not within {seconds} s: {m.world.slurm.nodes()} {m.world.slurm.jobs()}")


def runs(m: Manager, job: int, done: int) -> Callable[[], bool]:
    return lambda: m.world.slurm.job[job].done >= done


def zones(m: Manager) -> list[str]:
    return sorted(x.request.offering.zone for x in cloud(m).living())


def test_a_lost_machine_is_replaced_in_the_zone_of_the_other_though_it_was_just_reclaimed(m: Manager) -> None:
    job = m.world.slurm.submit(300, nodes=2)
    until(m, runs(m, job, 20), 120, job)
    assert zones(m) == ["a", "a"]
    first = cloud(m).living()[0]
    first.reclaim = m.world.clock() + 60
    until(m, runs(m, job, 300), 900, job)
    assert {x.request.offering.zone for x in cloud(m).machine.values()} == {"a"}


def test_where_the_zone_is_full_the_whole_job_moves(m: Manager) -> None:
    job = m.world.slurm.submit(300, nodes=2)
    until(m, runs(m, job, 20), 120, job)
    cloud(m).full = {"a"}
    cloud(m).vanish(cloud(m).living()[0])
    until(m, runs(m, job, 300), 1500, job)
    assert zones(m) == ["b", "b"]


def test_a_node_that_is_left_over_goes_to_a_job_that_waits(m: Manager) -> None:
    job = m.world.slurm.submit(300, nodes=2)
    until(m, runs(m, job, 20), 120, job)
    cloud(m).full = {"a", "b"}
    lost, kept = cloud(m).living()
    cloud(m).vanish(lost)
    small = m.world.slurm.submit(30)
    until(m, runs(m, small, 30), 300, job)
    assert kept.ending is None, "the small job ran on what was left"
    cloud(m).full = {"a"}
    until(m, runs(m, job, 300), 2500, job)
    assert zones(m) == ["b", "b"]
