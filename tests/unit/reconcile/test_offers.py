"""Whose situation makes what of the offerings: from Slurm's record, the ledger and the run's log to the launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from job_wrapper.store.io_types import Kind
from slurm_plugin.actions import CancelJob, EndReplacement, Launch, PowerDown, SetDown, WaitBegins, WaitEnds
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.ledger_records import TOLD_NO_CAPACITY, WAITING, Counter, Replacement
from slurm_plugin.placement import OfferingState, Order, Rules
from slurm_plugin.reconcile import Policy, decide
from slurm_plugin.requeue import RunTail
from tests.unit.reconcile.views import BIG, NOW, A, B, intent, job, machine, node, policy, view

SAFE = Offering("sim", "r", "a", "t", Market.ON_DEMAND)
COMING = "ALLOCATED POWERING_UP"
HOUR = 3600.0


def rules(**wanted: Any) -> Policy:
    plain = policy()
    spot = replace(plain.nodesets["spot"], offerings=(A, B, SAFE), rules=Rules(**wanted))
    return replace(plain, nodesets={**plain.nodesets, "spot": spot}, offerings={**plain.offerings, SAFE.id: SAFE})


def first_offering(of: Policy, booting: Any, **more: Any) -> str:
    found = [a for a in decide(view([node("n1", COMING)], [booting], rules=of, **more)) if isinstance(a, Launch)]
    assert len(found) == 1
    return found[0].offerings[0]


BOOTS = job(1, "RUNNING CONFIGURING", ("n1",))


def tail(left: float | None) -> dict[int, tuple[RunTail, ...]]:
    return {1: (RunTail("c/jobs/1/main", Kind.INTERRUPTED, "1", 0, 0, 0, True, left=left),)}


def test_the_last_part_of_a_run_goes_to_on_demand() -> None:
    of = rules(final_on_demand=0.1)
    assert first_offering(of, BOOTS) == A.id
    assert first_offering(of, BOOTS, runs=tail(0.5)) == A.id
    assert first_offering(of, BOOTS, runs=tail(None)) == A.id
    assert first_offering(of, BOOTS, runs=tail(0.05)) == SAFE.id


def test_a_near_deadline_does_too_by_what_is_left_of_the_time_limit() -> None:
    of = rules(policy=Order.DEADLINE)
    dated = replace(BOOTS, deadline=int(NOW + 4 * HOUR), time_limit=int(10 * HOUR))
    assert first_offering(of, replace(dated, deadline=0)) == A.id
    assert first_offering(of, dated) == SAFE.id
    assert first_offering(of, dated, runs=tail(0.1)) == A.id


def test_failures_and_waits() -> None:
    of = rules(on_demand_after_failures=2, on_demand_after_wait=600.0)
    assert first_offering(of, replace(BOOTS, restart_count=1)) == A.id
    assert first_offering(of, replace(BOOTS, restart_count=2)) == SAFE.id
    cooling = {o.id: OfferingState(o.id, 1, refused_until=NOW + 300) for o in (A, B)}
    actions = decide(view([node("n1", COMING)], [BOOTS], rules=of, offerings=cooling))
    assert any(isinstance(a, SetDown) for a in actions)
    assert WaitBegins(1) in actions
    waited = {("job:1", WAITING): Counter(1, NOW - 601.0)}
    assert first_offering(of, BOOTS, offerings=cooling, counters=waited) == SAFE.id


def test_a_job_that_runs_waits_no_longer() -> None:
    waited = {("job:1", WAITING): Counter(1, NOW - 601.0)}
    assert WaitEnds(1) in decide(view([], [job(1, "RUNNING", ("n1",))], counters=waited))
    assert WaitEnds(1) not in decide(view([], [BOOTS], counters=waited))
    assert WaitEnds(1) in decide(view([], [job(1, "PENDING", priority=0)], counters=waited)), (
        "held: let go, it waits from then on"
    )
    assert WaitEnds(1) not in decide(view([], [job(1, "PENDING")], counters=waited))


@pytest.mark.parametrize(
    ("change", "cancelled"),
    [
        ({}, True),
        ({"since": NOW - 23 * HOUR}, False),
        ({"told": NOW - 2 * HOUR}, False),
        ({"told": NOW - 2 * HOUR, "blocked": True}, True),
        ({"priority": 0}, False),
        ({"states": "RUNNING CONFIGURING"}, False),
        ({"states": "PENDING COMPLETING"}, False),
    ],
)
def test_who_waits_for_capacity_too_long_is_cancelled(change: dict[str, Any], cancelled: bool) -> None:
    counters = {
        ("job:1", WAITING): Counter(1, change.get("since", NOW - 25 * HOUR)),
        ("job:1", TOLD_NO_CAPACITY): Counter(1, change.get("told", NOW - 100.0)),
    }
    waits = job(1, change.get("states", "PENDING"), priority=change.get("priority", 10))
    states = (
        {o.id: OfferingState(o.id, stopped_until=float("inf"), text="Code: none at all") for o in (A, B, BIG)}
        if change.get("blocked")
        else {}
    )
    found = [a for a in decide(view([], [waits], counters=counters, offerings=states)) if isinstance(a, CancelJob)]
    assert [a.reason for a in found] == (["CapacityUnavailable"] if cancelled else [])
    if change.get("blocked"):
        assert f"no capacity for 25.0 h, the last word of {BIG.id}: Code: none at all; " in found[0].text


def test_a_jobs_node_goes_where_its_other_nodes_are() -> None:
    i2 = replace(intent("n2"), offering_id=B.id)
    both = job(1, "RUNNING CONFIGURING", ("n1", "n2"))
    nodes = [node("n1", COMING), node("n2", "ALLOCATED")]
    found = [a for a in decide(view(nodes, [both], [i2], [machine(i2)])) if isinstance(a, Launch)]
    assert [a.offerings for a in found] == [(B.id,)]


def test_surplus_goes_to_a_job_that_waits() -> None:
    i1 = intent("n1")
    prepared = (Replacement(7, "n1", NOW - 50, "x"),)
    up = [node("n1", "IDLE")]
    alone = decide(view(up, [], [i1], [machine(i1)], replacements=prepared))
    assert [type(a) for a in alone] == [PowerDown, EndReplacement]
    waits = job(2, "PENDING", reason="Resources")
    shared = decide(view(up, [waits], [i1], [machine(i1)], replacements=prepared))
    assert [type(a) for a in shared] == [EndReplacement]
