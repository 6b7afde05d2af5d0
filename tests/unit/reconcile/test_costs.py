"""Charges, and runs that end because they have cost enough: each line of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_plugin.actions import (
    Action,
    ChargeBegins,
    ChargeEnds,
    EndJob,
    HoldJob,
    Launch,
    PowerUp,
    ReleaseJob,
    Report,
    RequeueJob,
    SuspendJob,
)
from slurm_plugin.ledger_records import Charge, Counter, IntentState, SeenJob, Spent
from slurm_plugin.placement import Knowledge, Rules
from slurm_plugin.reconcile import Policy, decide
from slurm_plugin.reconcile.costs import COST_GRACE
from slurm_plugin.slurm.records import Job
from tests.unit.reconcile.views import NOW, A, B, intent, job, machine, node, policy, view, waiting

I1 = intent("n1")
UP = node("n1", "ALLOCATED")
KNOWN = Knowledge({A.id: 2.0, B.id: 6.0})
RUNS = job(1, "RUNNING", ("n1",), start_time=int(NOW) - 500, comment="cost_limit=10")


def seen(jobs: list[Job], **more: Any) -> tuple[Action, ...]:
    return decide(view([UP], jobs, [I1], [machine(I1)], **{"known": KNOWN, **more}))


def of(actions: tuple[Action, ...], *kinds: type[Any]) -> list[Any]:
    return [a for a in actions if isinstance(a, kinds)]


def capped(limit: float) -> Policy:
    plain = policy()
    return replace(plain, nodesets={**plain.nodesets, "spot": replace(plain.nodesets["spot"], rules=Rules(cost_limit=limit))})  # fmt: skip


def test_a_charge_begins_when_the_job_gets_the_node_at_the_price_of_its_machine() -> None:
    begun = Charge(1, 0, "n1", NOW - 500)
    assert of(seen([RUNS]), ChargeBegins) == [ChargeBegins(begun, A.id, 2.0)]
    assert of(seen([RUNS], charges={(1, 0, "n1"): begun}), ChargeBegins, ChargeEnds) == []
    assert of(seen([RUNS], known=Knowledge()), ChargeBegins)[0].price is None
    late = replace(I1, created=NOW - 100)
    of_late = decide(view([UP], [RUNS], [late], [machine(late)], known=KNOWN))
    assert of(of_late, ChargeBegins)[0].charge.began == NOW - 100, "not before there is a machine"
    asked = intent("n1", IntentState.ASKED)
    assert of(decide(view([node("n1", "ALLOCATED POWERING_UP")], [RUNS], [asked])), ChargeBegins) == []


@pytest.mark.parametrize(
    ("now", "ended"),
    [
        (None, NOW),
        (job(1, "COMPLETED", end_time=int(NOW) - 30), NOW - 30),
        (waiting(1), NOW - 10),
        (job(1, "RUNNING", ("n2",), restart_count=1, submit_time=int(NOW) - 20), NOW - 20),
        (job(1, "PENDING COMPLETING", ("n1",), restart_count=1), NOW),
        (job(1, "COMPLETING", ("n1",), restart_count=1), None),
        (job(1, "RUNNING COMPLETING", ("n1",)), None),
    ],
)
def test_a_charge_ends_when_the_job_has_left_the_node(now: Job | None, ended: float | None) -> None:
    begun = Charge(1, 0, "n1", NOW - 500)
    found = of(seen([now] if now else [], charges={(1, 0, "n1"): begun}), ChargeEnds)
    assert found == ([] if ended is None else [ChargeEnds(begun, ended)])


def test_a_running_job_is_suspended_a_minute_before_its_limit() -> None:
    def stopped(paid: float, rate: float = 60.0) -> list[Any]:
        return of(seen([RUNS], spent={1: Spent(paid, rate, False)}), SuspendJob, RequeueJob, HoldJob, EndJob)

    assert stopped(8.9) == []
    (action,) = stopped(9.0)
    assert isinstance(action, SuspendJob)
    assert action.why.startswith("CostLimit: 10 is all but spent")
    assert of(seen([replace(RUNS, comment="")], spent={1: Spent(99.0, 60.0, False)}), SuspendJob) == []
    nodesets = seen([replace(RUNS, comment="")], spent={1: Spent(99.0, 60.0, False)}, rules=capped(20.0))
    assert "CostLimit: 20 " in of(nodesets, SuspendJob)[0].why


@pytest.mark.parametrize(
    ("changes", "kind"), [({}, RequeueJob), ({"requeue": False}, EndJob), ({"batch": False}, EndJob)]
)
def test_one_that_does_not_hear_it_is_sent_away_after_a_while(changes: dict[str, Any], kind: type[Any]) -> None:
    spent = {1: Spent(11.0, 60.0, False)}

    def after(seconds: float) -> list[Any]:
        counters = {("job:1", "cost-limit:0:10"): Counter(1, NOW - seconds)}
        return of(seen([replace(RUNS, **changes)], spent=spent, counters=counters), SuspendJob, RequeueJob, EndJob)

    assert [type(a) for a in after(COST_GRACE - 1)] == [SuspendJob], "asked again meanwhile"
    (action,) = after(COST_GRACE)
    assert isinstance(action, kind)
    assert getattr(action, "hold", True)
    assert "CostLimit" in action.why


def test_one_whose_limit_is_raised_after_it_was_asked_is_let_go_once_and_asked_anew_at_the_next() -> None:
    asked = {("job:1", "cost-limit:0:10"): Counter(1, NOW - 2 * COST_GRACE)}
    marked = replace(RUNS, priority=0, comment="cost_limit=20")

    def done(job_: Job, paid: float, **more: Any) -> list[Any]:
        counters = {**asked, **more.get("counters", {})}
        return of(
            seen([job_], spent={1: Spent(paid, 60.0, False)}, counters=counters), ReleaseJob, SuspendJob, RequeueJob
        )

    (release,) = done(marked, 11.0)
    assert isinstance(release, ReleaseJob)
    assert done(replace(marked, priority=10), 11.0) == []
    assert done(marked, 11.0, counters={("job:1", release.counter): Counter(1, NOW)}) == [], (
        "what its user then holds is held"
    )
    assert [type(a) for a in done(replace(marked, comment=""), 11.0)] == [ReleaseJob], "nor has it to have a limit"
    assert done(replace(marked, restart_count=1), 11.0) == [], "another attempt's hold is somebody else's"
    assert [type(a) for a in done(marked, 19.5)] == [SuspendJob], "with its grace before it"


def test_a_waiting_job_is_held_before_an_attempt_that_would_cross_the_limit() -> None:
    """An attempt on one node takes 600 s at 2 an hour: 0.33."""
    waits = waiting(1, comment="cost_limit=10", nodes=())
    ran = {1: SeenJob(1, 0, "spot", ("n1",))}

    def held(paid: float, job_: Job = waits) -> list[Any]:
        actions = seen([job_], spent={1: Spent(paid, 0.0, False)}, seen=ran)
        found = of(actions, HoldJob)
        assert not found or not of(actions, PowerUp), "nothing is prepared for it"
        return found

    assert held(9.6) == []
    assert len(held(9.7)) == 1
    assert "held, its checkpoints are kept" in held(9.7)[0].why
    assert held(9.7, replace(waits, time_limit=60)) == [], "it takes a minute at most"
    assert len(held(9.6, replace(waits, node_count=2))) == 1
    assert held(9.7, replace(waits, priority=0)) == [], "it is held already"


def test_a_first_attempt_that_would_cross_it_is_not_begun() -> None:
    first = job(1, "PENDING", reason="Resources", comment="cost_limit=0.3")
    assert len(of(seen([first]), HoldJob)) == 1
    assert of(seen([replace(first, comment="cost_limit=0.4")]), HoldJob) == []
    boots = job(1, "RUNNING CONFIGURING", ("n2",), comment="cost_limit=0.3")
    found = of(seen([boots]), RequeueJob, EndJob)
    assert [a.hold for a in found] == [True]


def test_an_unknown_price_is_not_bought_for_it_and_a_limit_that_is_none_is_said() -> None:
    boots = job(1, "RUNNING CONFIGURING", ("n2",), comment="cost_limit=5")
    nodes = [node("n2", "ALLOCATED POWERING_UP")]
    launches = of(decide(view(nodes, [boots], known=Knowledge({B.id: 6.0}))), Launch)
    assert [a.offerings for a in launches] == [(B.id,)]
    wrong = of(seen([replace(RUNS, comment="cost_limit=much")]), Report)
    assert "cost_limit=much is no limit" in wrong[0].text
