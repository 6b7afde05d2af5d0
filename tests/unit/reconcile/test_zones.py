"""Nodes of one job in one zone: what binds, what is passed over for it, what is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from slurm_plugin.actions import Launch, PowerDown, PowerUp, SetDown, WaitBegins
from slurm_plugin.cloud.provider import InstanceState, Offering
from slurm_plugin.ledger_records import TOLD_NO_CAPACITY, Counter, IntentState, Replacement, SeenJob
from slurm_plugin.placement import Knowledge, OfferingState, Rules
from slurm_plugin.reconcile import Policy, decide
from slurm_plugin.reconcile.gangs import GATHER
from tests.unit.reconcile.views import NOW, A, B, intent, job, machine, node, policy, view, waiting

COMING = "ALLOCATED POWERING_UP"
I1 = intent("n1")
BOTH = job(1, "RUNNING CONFIGURING", ("n1", "n2"), start_time=int(NOW) - 5)
NODES = [node("n1", "ALLOCATED"), node("n2", COMING)]
FULL = {A.id: OfferingState(A.id, 1, refused_until=NOW + 300, text="full")}


def offered(*offerings: Offering, **rules: Any) -> Policy:
    plain = policy()
    spot = replace(plain.nodesets["spot"], offerings=offerings, rules=Rules(**rules))
    return replace(plain, nodesets={**plain.nodesets, "spot": spot}, offerings={o.id: o for o in offerings})


def of(found: Sequence[Any], kind: type[Any]) -> list[Any]:
    return [a for a in found if isinstance(a, kind)]


def launches(**more: Any) -> list[Any]:
    return of(decide(view(NODES, [BOTH], [I1], [machine(I1)], **more)), Launch)


def test_only_the_zone_of_the_jobs_other_machines_is_asked() -> None:
    (found,) = launches()
    assert found.offerings == (A.id,)
    assert any(B.id in text and "other machines are (a)" in text for text in found.passed)
    (free,) = launches(rules=offered(A, B, across_zones=True))
    assert free.offerings == (A.id, B.id)
    last = {A.id: OfferingState(A.id, reclaimed_until=NOW + 600)}
    assert launches(offerings=last)[0].offerings == (A.id,), "even where the zone was reclaimed a short while ago"


def test_a_machine_that_goes_away_binds_nothing() -> None:
    gone = decide(view(NODES, [BOTH], [I1], [machine(I1, InstanceState.RECLAIMING)]))
    assert of(gone, Launch)[0].offerings == (A.id, B.id)
    alone = job(1, "RUNNING CONFIGURING", ("n2",))
    assert of(decide(view(NODES, [alone], [I1], [machine(I1)])), Launch)[0].offerings == (A.id, B.id)


def test_without_capacity_there_the_job_waits_and_is_told_why() -> None:
    found = decide(view(NODES, [BOTH], [I1], [machine(I1)], offerings=FULL))
    assert of(found, Launch) == []
    assert [a.node for a in of(found, SetDown)] == ["n2"]
    assert WaitBegins(1) in found
    told = [a.text for a in found if hasattr(a, "text")]
    assert any("no capacity where the job's other machines are (a)" in text for text in told)


@pytest.mark.parametrize("pending", [False, True])
def test_a_prepared_node_is_bought_beside_what_the_job_keeps(pending: bool) -> None:
    prepared = (Replacement(1, "n3", NOW - 5, "x"),)
    i2 = intent("n2")
    nodes = [node("n1", "IDLE" if pending else "ALLOCATED"), node("n2", "DOWN"), node("n3", "IDLE POWERING_UP")]
    here = waiting(1, node_count=2) if pending else job(1, "RUNNING", ("n1", "n2"))
    seen = {1: SeenJob(1, 0, "spot", ("n1", "n2"))}
    kept = replace(I1, offering_id=B.id)
    found = decide(view(nodes, [here], [kept, i2], [machine(kept), machine(i2)], replacements=prepared, seen=seen))
    assert [a.offerings for a in of(found, Launch)] == [(B.id,)]


def test_the_zone_of_a_machine_in_any_zone_is_asked_for_by_name() -> None:
    anywhere = Offering("sim", "r", "any", "t", A.market)
    rules = offered(anywhere, B, A)
    there = replace(I1, offering_id=anywhere.id)
    told = machine(there, zone="b")
    (found,) = of(decide(view(NODES, [BOTH], [there], [told], rules=rules)), Launch)
    assert found.offerings == (anywhere.id, B.id)
    assert found.pins == ((anywhere.id, "b"),)
    asked = replace(intent("n2", IntentState.ASKED, age=60.0), offering_id=anywhere.id)
    again = of(decide(view(NODES, [BOTH], [there, asked], [told], rules=rules)), Launch)
    assert [(a.launch_id, a.pins) for a in again] == [(asked.launch_id, ((anywhere.id, "b"),))]
    young = replace(there, created=NOW - 1.0)
    assert of(decide(view(NODES, [BOTH], [young], [], rules=rules)), Launch) == [], "its listing will tell"


def test_what_scatters_is_not_bought_for_a_job_of_several_nodes() -> None:
    known = Knowledge(scattered=frozenset({A.id}))
    nodes = [node("n1", COMING), node("n2", COMING)]
    assert {a.offerings for a in of(decide(view(nodes, [BOTH], known=known)), Launch)} == {(B.id,)}
    alone = job(1, "RUNNING CONFIGURING", ("n1",))
    assert of(decide(view(nodes[:1], [alone], known=known)), Launch)[0].offerings == (A.id, B.id)


@pytest.mark.parametrize("late", ["ALLOCATED POWER_UP", "ALLOCATED POWERED_DOWN", "ALLOCATED POWERING_DOWN"])
def test_all_of_a_jobs_machines_are_asked_for_together(late: str) -> None:
    nodes = [node("n1", COMING), node("n2", late)]
    assert of(decide(view(nodes, [BOTH])), Launch) == []
    tired = replace(BOTH, start_time=int(NOW - GATHER) - 1)
    assert len(of(decide(view(nodes, [tired])), Launch)) == 1, "not for long"
    both = of(decide(view([node("n1", COMING), node("n2", COMING)], [BOTH])), Launch)
    assert len(both) == 2
    assert both[0].gang == both[1].gang != None  # noqa: E711 - it is one gang, and there is one


def test_nodes_prepared_for_one_job_come_all_or_not_at_all() -> None:
    prepared = tuple(Replacement(1, name, NOW - 5, "x") for name in ("n1", "n2"))
    nodes = [node("n1", "IDLE POWERING_UP"), node("n2", "IDLE POWERING_UP")]
    found = of(decide(view(nodes, [waiting(1, node_count=2)], replacements=prepared)), Launch)
    assert len(found) == 2
    assert {a.gang for a in found} == {"job-1-1-ahead"}
    alone = of(decide(view(nodes[:1], [waiting(1)], replacements=prepared[:1])), Launch)
    assert [a.gang for a in alone] == [None]


@pytest.mark.parametrize("late", ["IDLE POWER_UP", "IDLE POWERED_DOWN", "IDLE POWERING_DOWN"])
def test_two_nodes_that_are_lost_at_once_are_bought_together(late: str) -> None:
    """Slurm does not show both as powering up in the same look."""
    prepared = tuple(Replacement(1, name, NOW - 5, "x") for name in ("n1", "n2"))
    nodes, gang = [node("n1", "IDLE POWERING_UP"), node("n2", late)], waiting(1, node_count=3)
    assert of(decide(view(nodes, [gang], replacements=prepared)), Launch) == []
    tired = tuple(replace(r, created=NOW - GATHER - 1) for r in prepared)
    assert len(of(decide(view(nodes, [gang], replacements=tired)), Launch)) == 1, "not for long"
    others = (prepared[0], replace(prepared[1], job_id=2))
    assert len(of(decide(view(nodes, [gang, waiting(2)], replacements=others)), Launch)) == 1, "not for another job's"
    both = [nodes[0], node("n2", "IDLE POWERING_UP")]
    assert {a.gang for a in of(decide(view(both, [gang], replacements=prepared)), Launch)} == {"job-1-1-ahead"}


def test_a_node_prepared_for_a_gang_is_one_of_it_whoever_else_waits_for_it() -> None:
    prepared = (Replacement(2, "n1", NOW - 6, "x"), *(Replacement(1, name, NOW - 5, "x") for name in ("n1", "n2")))
    nodes = [node("n1", "IDLE POWERING_UP"), node("n2", "IDLE POWERING_UP")]
    found = of(decide(view(nodes, [waiting(1, node_count=2), waiting(2)], replacements=prepared)), Launch)
    assert {a.gang for a in found} == {"job-1-1-ahead"}


def test_nothing_is_prepared_where_it_could_not_be_bought() -> None:
    gang = waiting(1, node_count=2)
    seen = {1: SeenJob(1, 0, "spot", ("n1", "n2"))}
    up = [node("n1", "IDLE")]
    rules = offered(A, B)
    assert len(of(decide(view(up, [gang], [I1], [machine(I1)], rules=rules, seen=seen)), PowerUp)) == 1
    assert of(decide(view(up, [gang], [I1], [machine(I1)], rules=rules, seen=seen, offerings=FULL)), PowerUp) == []


def test_idle_nodes_of_two_zones_are_not_dealt_to_one_job() -> None:
    there = replace(intent("n2"), offering_id=B.id)
    up = [node("n1", "IDLE"), node("n2", "IDLE")]
    gang = waiting(1, node_count=2)
    found = decide(view(up, [gang], [I1, there], [machine(I1), machine(there)]))
    assert [a.node for a in of(found, PowerUp)] == ["n3"]


@pytest.mark.parametrize(
    ("change", "ended"),
    [
        ({}, ["n1"]),
        ({"offerings": {}}, []),
        ({"told": NOW - 7200}, []),
        ({"other": job(2, "PENDING", reason="Resources")}, []),
        ({"other": job(2, "PENDING", reason="Resources", partition="big")}, ["n1"]),
        ({"rules": offered(A, B, across_zones=True)}, []),
        ({"rules": offered(A)}, []),
    ],
)
def test_what_can_not_be_completed_is_given_up_for_the_whole(change: dict[str, Any], ended: list[str]) -> None:
    """Zone a is full, zone b is not; n1 is idle in a. It is left to another job that waits, and else ended."""
    counters = {("job:1", TOLD_NO_CAPACITY): Counter(1, change.get("told", NOW - 30.0))}
    gang = waiting(1, node_count=2)
    found = decide(
        view(
            [node("n1", "IDLE")],
            [gang, change["other"]] if "other" in change else [gang],
            [I1],
            [machine(I1)],
            rules=change.get("rules"),
            offerings=change.get("offerings", FULL),
            counters=counters,
            seen={1: SeenJob(1, 0, "spot", ("n1", "n2"))},
        )
    )
    assert [a.node for a in of(found, PowerDown)] == ended
