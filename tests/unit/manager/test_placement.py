"""Placement as the manager carries it out, over the simulated Slurm and cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import Launched, LaunchRequest, Market, Offering, RefusalKind, Refused
from slurm_plugin.ledger_records import WAITING
from slurm_plugin.placement import Rules
from tests.unit.manager.harness import Manager, policy
from tests.unit.manager.world import World

Make = Callable[..., Manager]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Manager] = []

    def build(markets: tuple[Market, ...] = (Market.SPOT, Market.SPOT), rules: Rules | None = None) -> Manager:
        world = World(("n1", "n2"), tmp_path / f"m{len(made)}")
        offerings = tuple(Offering("sim", "r", zone, "t", m) for zone, m in zip("abc", markets, strict=False))
        plain = policy(("n1", "n2"))
        facts = replace(plain.nodesets["spot"], offerings=offerings, rules=rules or Rules())
        made.append(
            Manager(
                world,
                replace(plain, nodesets={"spot": facts}, offerings={o.id: o for o in offerings}),
                world.state_dir / "ledger.db",
            )
        )
        return made[-1]

    yield build
    for manager in made:
        manager.close()


def until(m: Manager, true: Callable[[], bool], seconds: int) -> None:
    for _ in range(seconds):
        if true():
            return
        m.step()
    raise AssertionError(f"not within {seconds} s: {m.world.slurm.nodes()} {m.world.slurm.jobs()}")


def has(m: Manager, job: int, state: str) -> Callable[[], bool]:
    return lambda: m.world.slurm.job[job].record.states == {state}


def test_the_second_offering_is_asked_in_the_same_resume_and_the_first_cools_over_a_restart(make: Make) -> None:
    m = make()
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY]
    job = m.world.slurm.submit(20)
    until(m, has(m, job, "RUNNING"), 60)
    assert m.world.slurm.job[job].record.restart_count == 0
    assert [x.request.offering.zone for x in m.world.cloud.machine.values()] == ["b"]
    cooling = m.ledger.offerings()["sim/r/a/t/spot"]
    assert cooling.refused_until > m.world.clock() - 60
    m.close()
    m.start()
    assert m.ledger.offerings()["sim/r/a/t/spot"] == cooling
    second = m.world.slurm.submit(20)
    until(m, has(m, second, "RUNNING"), 60)
    zones = [x.request.offering.zone for x in m.world.cloud.machine.values()]
    assert zones == (["b", "b"] if m.world.clock() < cooling.refused_until else zones)


def test_what_no_waiting_helps_is_said_at_once_and_not_asked_again_until_it_is_cleared(make: Make) -> None:
    m = make(markets=(Market.SPOT,))
    m.world.cloud.refusals = [RefusalKind.MISTAKE]
    job = m.world.slurm.submit(20)
    until(m, lambda: bool(m.ledger.offerings()), 30)
    m.run(3)
    assert "can't be made" in m.world.slurm.job[job].record.comment
    assert "Code: words" in m.world.slurm.job[job].record.comment
    m.run(2000)
    assert m.world.cloud.calls == 1
    m.ledger.clear_offering("sim/r/a/t/spot")
    until(m, has(m, job, "COMPLETED"), 400)


def test_on_demand_is_bought_only_after_the_wait(make: Make) -> None:
    m = make((Market.SPOT, Market.ON_DEMAND), Rules(on_demand_after_wait=600.0))
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY] * 1000
    began = m.world.clock()
    job = m.world.slurm.submit(20)
    until(m, lambda: m.world.clock() - began >= 590, 600)
    assert not any("on-demand" in i.offering_id for i in m.ledger.intents(closed=True))
    until(m, lambda: any("on-demand" in i.offering_id for i in m.ledger.intents(closed=True)), 1500)
    m.world.cloud.refusals = []
    until(m, has(m, job, "COMPLETED"), 1500)


def test_a_job_that_finds_no_capacity_for_the_whole_timeout_is_cancelled_and_told_why(make: Make) -> None:
    m = make(rules=Rules(queue_timeout=1500.0))
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY] * 10_000
    began = m.world.clock()
    job = m.world.slurm.submit(20, admin_comment="checked by Ann")
    until(m, has(m, job, "CANCELLED"), 4000)
    assert m.world.clock() - began >= 1500
    told = "spotburst: CapacityUnavailable: no capacity for"
    assert m.world.slurm.job[job].record.comment.startswith(told)
    assert m.world.slurm.job[job].record.admin_comment.startswith(f"checked by Ann | {told}")
    assert any(e.kind == "cancelled" for e in m.ledger.events(job=job))


def test_a_job_that_runs_waits_no_longer(make: Make) -> None:
    m = make(rules=Rules(queue_timeout=1000.0))
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY] * 2
    job = m.world.slurm.submit(2000)
    until(m, lambda: (f"job:{job}", WAITING) in m.ledger.counters(), 60)
    until(m, has(m, job, "RUNNING"), 900)
    m.run(2)
    assert (f"job:{job}", WAITING) not in m.ledger.counters()
    until(m, has(m, job, "COMPLETED"), 2500)


def test_a_jobs_story_names_every_offering_and_why_it_was_taken_or_not(make: Make) -> None:
    m = make((Market.SPOT, Market.SPOT, Market.ON_DEMAND), Rules(on_demand_after_failures=2))
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY]
    job = m.world.slurm.submit(20)
    until(m, has(m, job, "RUNNING"), 60)
    story = [e.text for e in m.ledger.events(job=job)]
    assert story == [
        "sim/r/c/t/on-demand passed over, excluded: on-demand only after 2 starts that came to nothing",
        "asking sim/r/a/t/spot",
        "sim/r/a/t/spot: Code: words",
        "asking sim/r/b/t/spot",
        "i-0000 of sim/r/b/t/spot",
    ]


def test_a_refusal_that_nobody_knows_is_said_and_asked_again_after_a_while(make: Make) -> None:
    m = make(markets=(Market.SPOT,))
    real = m.world.cloud.launch

    def launch(requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        if m.world.cloud.calls:
            return real(requests)
        m.world.cloud.calls += 1
        return [Refused(r.launch_id, RefusalKind.MISTAKE, "NeverHeardOf", "words", known=False) for r in requests]

    m.world.cloud.launch = launch  # type: ignore[method-assign]
    job = m.world.slurm.submit(20)
    until(m, lambda: bool(m.ledger.offerings()), 30)
    m.run(3)
    assert "NeverHeardOf: words" in m.world.slurm.job[job].record.comment
    until(m, has(m, job, "COMPLETED"), 900)
