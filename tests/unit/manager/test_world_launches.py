"""The manager over a simulated cloud that refuses, is slow, or loses its answer: what becomes of launches."""

from __future__ import annotations

import pytest

from slurm_plugin.cloud.provider import RefusalKind
from tests.unit.manager.checks import Make, check_settled, running, states, until


def test_no_capacity_leads_to_the_next_offering_in_the_same_pass(make: Make) -> None:
    m = make()
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY]
    job = m.world.slurm.submit(20)
    until(m, running(m, job), 60)
    assert [x.request.offering.zone for x in m.world.cloud.machine.values()] == ["b"]
    assert m.world.cloud.calls == 2
    assert m.world.slurm.job[job].record.restart_count == 0


@pytest.mark.parametrize("idle_on_suspend", [True, False])
def test_no_capacity_anywhere_leaves_the_job_queued_and_the_nodes_in_the_pool(
    make: Make, idle_on_suspend: bool
) -> None:
    m = make(idle_on_suspend=idle_on_suspend)
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY] * 10
    job = m.world.slurm.submit(20)
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 60)
    assert "no capacity" in m.world.slurm.job[job].record.comment
    until(m, lambda: states(m, job) == {"COMPLETED"}, 3000)
    m.run(600)
    check_settled(m)


def test_try_later_asks_the_same_offering_again_and_cools_nothing(make: Make) -> None:
    m = make()
    m.world.cloud.refusals = [RefusalKind.TRY_LATER] * 3
    job = m.world.slurm.submit(20)
    until(m, running(m, job), 80)
    assert [x.request.offering.zone for x in m.world.cloud.machine.values()] == ["a"]
    assert all(s.ready_at() == 0 for s in m.ledger.offerings().values())
    assert len(m.ledger.intents(closed=True)) == 1


@pytest.mark.parametrize("kind", [RefusalKind.QUOTA, RefusalKind.MISTAKE])
def test_quota_and_mistakes_are_said_to_the_user(make: Make, kind: RefusalKind) -> None:
    m = make()
    m.world.cloud.refusals = [kind] * 2
    job = m.world.slurm.submit(20)
    m.run(20)
    assert kind.value in " ".join(e.text for e in m.ledger.events(job=job))
    assert "spotburst: " in m.world.slurm.job[job].record.comment


def test_a_machine_that_never_registers_is_ended_and_its_node_comes_back(make: Make) -> None:
    m = make()
    m.world.cloud.boots_in = lambda: 1e9 if len(m.world.cloud.machine) < 1 else 5.0
    job = m.world.slurm.submit(20)
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 150)
    until(m, lambda: not any(x.boots_in > 1e6 for x in m.world.cloud.living()), 20)
    until(m, lambda: states(m, job) == {"COMPLETED"}, 600)
    m.run(600)
    check_settled(m)


def test_a_name_is_used_again_only_when_its_old_machine_is_gone(make: Make) -> None:
    m = make(("n1",))
    m.world.cloud.linger = lambda: 40.0
    job = m.world.slurm.submit(100)
    until(m, running(m, job))
    old = m.world.cloud.living()[0]
    m.world.slurm.update_nodes(["n1"], state="power_down_force")
    until(m, lambda: len(m.world.cloud.machine) == 2, 400)
    assert old.gone is not None
    assert next(x for x in m.world.cloud.machine.values() if x is not old).born >= old.gone


def test_a_lost_answer_makes_no_second_machine(make: Make) -> None:
    m = make()
    m.world.cloud.lose_answers = 3
    m.world.cloud.listing_lag = lambda: 30.0
    job = m.world.slurm.submit(20)
    until(m, lambda: states(m, job) == {"COMPLETED"})
    assert len(m.world.cloud.machine) == 1
