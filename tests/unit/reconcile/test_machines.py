"""The node table: each line of it, each trap of docs/cases.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.actions import (
    NOWHERE,
    Action,
    Close,
    DropRequest,
    Launch,
    NoteRegistered,
    Report,
    Resume,
    Retire,
    SetAddress,
    SetDown,
    Terminate,
)
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.ledger_records import IntentState, Replacement
from slurm_plugin.placement import OfferingState
from slurm_plugin.reconcile import decide
from slurm_plugin.requests import Request
from tests.unit.reconcile.views import NOW, A, B, cooled, intent, job, kinds, machine, node, view, waiting

UP = "IDLE"
COMING = "ALLOCATED POWERING_UP NOT_RESPONDING"
LIVE, ASKED, RETIRED = IntentState.LIVE, IntentState.ASKED, IntentState.RETIRED
RUNNING, GONE, STOPPING = InstanceState.RUNNING, InstanceState.GONE, InstanceState.STOPPING


def one(flags: str, reason: str = "", state: InstanceState | None = RUNNING, **changes: Any) -> tuple[Action, ...]:
    """A node ``n1`` with a live intent whose machine is in ``state`` (None: not listed)."""
    i = intent("n1")
    return decide(view([node("n1", flags, reason)], [], [i], [machine(i, state)] if state else [], **changes))


def bare(flags: str, reason: str = "", **changes: Any) -> tuple[Action, ...]:
    """A node without intent or machine."""
    return decide(view([node("n1", flags, reason)], **changes))


@pytest.mark.parametrize(
    ("flags", "reason", "expected"),
    [
        ("IDLE POWERED_DOWN", "", []),
        ("IDLE POWERED_DOWN NOT_RESPONDING", "", []),
        ("ALLOCATED POWERED_DOWN", "", []),
        ("IDLE POWER_UP POWERED_DOWN NOT_RESPONDING", "", []),
        (COMING, "", ["Launch"]),
        ("IDLE POWERING_UP NOT_RESPONDING", "", ["Launch"]),
        ("MIXED POWERING_UP", "", ["Launch"]),
        ("IDLE POWER_DOWN POWERING_UP NOT_RESPONDING", "", ["PowerDown"]),
        ("ALLOCATED POWER_DOWN POWERING_UP NOT_RESPONDING", "", ["Launch"]),
        ("IDLE DRAIN POWERING_UP", "spotburst: aws reclaim", ["PowerDown"]),
        ("IDLE DRAIN POWERING_UP", "Ann looks at it", []),
        ("IDLE POWERING_DOWN", "", []),
        ("IDLE", "", []),
        ("ALLOCATED", "", []),
        ("DOWN POWERED_DOWN", "ResumeTimeout reached", ["Resume"]),
        ("DOWN POWERED_DOWN NOT_RESPONDING", "spotburst: i-1 is gone", ["Resume"]),
        ("DOWN POWERING_DOWN", "spotburst: i-1 is gone", ["Resume"]),
        ("DOWN POWERED_DOWN", "Ann looks at it", []),
        ("DOWN", "Ann looks at it", []),
        ("DOWN", "spotburst: i-1 is gone", ["PowerDown"]),
        ("DOWN", "Not responding", ["PowerDown"]),
        ("DOWN POWERING_UP NOT_RESPONDING", "spotburst: no capacity: x", ["PowerDown"]),
        ("DOWN POWER_DOWN POWERING_UP NOT_RESPONDING", "spotburst: no capacity: x", ["PowerDown"]),
        ("IDLE DRAIN POWERED_DOWN", "spotburst: aws reclaim by 2026-05-02T08:22:00Z", ["Undrain"]),
        ("IDLE DRAIN POWERED_DOWN", "Ann looks at it", []),
        ("UNKNOWN", "", []),
        ("FUTURE", "", []),
    ],
)
def test_a_node_without_a_machine(flags: str, reason: str, expected: list[str]) -> None:
    assert kinds(bare(flags, reason)) == expected


def test_a_node_that_boots_has_an_address_that_is_nobodys_until_it_has_registered() -> None:
    """Slurm would look its name up, which no DNS knows, and answer nobody meanwhile."""
    boots = node("n1", COMING, address="n1")
    nothing = {o.id: OfferingState(o.id, 1, refused_until=NOW + 300) for o in (A, B)}
    for offerings, then in (({}, "Launch"), (nothing, "SetDown")):
        actions = decide(view([boots], offerings=offerings))
        assert actions[0] == SetAddress("n1", NOWHERE)
        assert then in kinds(actions)
    assert decide(view([node("n1", "IDLE POWERED_DOWN", address="n1")])) == (SetAddress("n1", NOWHERE),), (
        "ahead of its next job"
    )
    assert decide(view([node("n1", "IDLE POWERED_DOWN", address=NOWHERE)])) == ()
    registered, i = node("n1", "ALLOCATED", address=NOWHERE), intent("n1")
    for told in ("10.0.0.7", ""):
        assert decide(view([registered], [], [i], [machine(i, address=told)])) == (SetAddress("n1", told or "n1"),)


@pytest.mark.parametrize(
    ("flags", "reason", "state", "expected"),
    [
        (UP, "", RUNNING, []),
        ("ALLOCATED", "", InstanceState.PENDING, []),
        (UP, "", GONE, ["SetDown"]),
        ("ALLOCATED", "", STOPPING, ["SetDown"]),
        ("ALLOCATED NOT_RESPONDING", "", GONE, ["SetDown"]),
        ("IDLE DRAIN", "Ann", GONE, ["SetDown"]),
        (COMING, "", RUNNING, []),
        (COMING, "", InstanceState.PENDING, []),
        (COMING, "", GONE, ["Close"]),
        (COMING, "", STOPPING, ["Retire"]),
        ("IDLE POWERING_DOWN", "", RUNNING, ["Terminate"]),
        ("IDLE POWERING_DOWN", "", GONE, ["Close"]),
        ("IDLE POWERED_DOWN", "", RUNNING, ["Terminate"]),
        ("IDLE POWER_UP POWERED_DOWN", "", RUNNING, []),
        ("IDLE POWER_DOWN", "", RUNNING, []),
        ("DOWN POWERED_DOWN", "ResumeTimeout reached", RUNNING, ["Terminate"]),
        ("DOWN", "spotburst: no contact since 08:00:00Z", RUNNING, ["Terminate", "PowerDown"]),
        ("DOWN", "spotburst: i-1 is gone", GONE, ["PowerDown"]),
        ("DOWN", "Not responding", RUNNING, []),
        ("DOWN", "Not responding", GONE, ["PowerDown"]),
        ("DOWN", "Node unexpectedly rebooted", RUNNING, ["Terminate", "PowerDown"]),
        ("DOWN", "Ann looks at it", RUNNING, []),
        ("DOWN POWERED_DOWN", "Ann looks at it", RUNNING, ["Terminate"]),
        ("UNKNOWN", "", GONE, []),
    ],
)
def test_a_node_with_a_machine(flags: str, reason: str, state: InstanceState, expected: list[str]) -> None:
    assert kinds(one(flags, reason, state)) == expected


def test_cases_8_a_young_machine_missing_from_a_listing_is_waited_for() -> None:
    i = intent("n1", age=30)
    assert decide(view([node("n1", "ALLOCATED")], [], [i], [], missing_since={i.launch_id: NOW - 30})) == ()


def test_a_machine_missing_for_long_is_lost_but_not_after_one_listing() -> None:
    i = intent("n1", age=1000)
    lacking = view([node("n1", "ALLOCATED")], [], [i], [], missing_since={i.launch_id: NOW - 1})
    assert decide(lacking) == ()
    lacking = view([node("n1", "ALLOCATED")], [], [i], [], missing_since={i.launch_id: NOW - 6})
    assert kinds(decide(lacking)) == ["SetDown"]


def test_a_listing_that_failed_tells_nothing() -> None:
    i = intent("n1")
    for flags in (UP, "ALLOCATED", COMING, "IDLE POWERING_DOWN", "DOWN POWERED_DOWN"):
        v = view([node("n1", flags, "spotburst: x")], [], [i], [], cloud=False, missing_since={i.launch_id: 0.0})
        assert not {"SetDown", "Close", "Launch", "Resume"} & set(kinds(decide(v))), flags


def test_slurm_down_concludes_nothing() -> None:
    i = intent("n1")
    assert decide(view([], [], [i], [], known_nodes=None, known_jobs=None, missing_since={i.launch_id: 0.0})) == ()


def test_cases_9_a_young_machine_of_a_node_that_slurm_shows_off_is_left() -> None:
    i = intent("n1", age=60)
    assert decide(view([node("n1")], [], [i], [machine(i)])) == ()


def test_cases_12_a_machine_whose_answer_was_lost_is_found_by_its_launch_id() -> None:
    i = intent("n1", ASKED, age=3)
    actions = decide(view([node("n1", COMING)], [], [i], [machine(i)]))
    assert kinds(actions) == ["Adopt"]
    i = intent("n1", ASKED, age=3)
    assert decide(view([node("n1", COMING)], [], [i], [])) == ()
    i = intent("n1", ASKED, age=6)
    assert decide(view([node("n1", COMING)], [], [i], [])) == (Launch("n1", "spot", (A.id,), i.launch_id),)


def test_an_unknown_machine_is_adopted_first_and_judged_then() -> None:
    i = intent("n1")
    assert kinds(decide(view([node("n1", UP)], [], [], [machine(i)]))) == ["Adopt"]


def test_cases_13_resume_fail_ends_a_young_machine_too() -> None:
    i = intent("n1", age=20, registered=0.0)
    request = Request("resume_fail", ("n1",), NOW - 1, Path("r"))
    actions = decide(
        view([node("n1", "DOWN POWERED_DOWN", "ResumeTimeout reached")], [], [i], [machine(i)], requests=(request,))
    )
    assert [a.blame for a in actions if isinstance(a, Terminate)] == [True]


def test_a_machine_that_becomes_a_node_is_written_down_once() -> None:
    for flags, state, age, then in (
        ("ALLOCATED", LIVE, 0.0, [NoteRegistered("launch-n1", "n1")]),
        ("ALLOCATED", LIVE, NOW - 5, []),
        (COMING, LIVE, 0.0, []),
        ("ALLOCATED", RETIRED, 0.0, []),
    ):
        i = intent("n1", state, registered=age)
        actions = decide(view([node("n1", flags)], [], [i], [machine(i)]))
        assert [a for a in actions if isinstance(a, NoteRegistered)] == then, (flags, state)


@pytest.mark.parametrize("registered", [0.0, NOW - 500])
@pytest.mark.parametrize(
    ("flags", "reason", "state"),
    [
        ("DOWN POWERED_DOWN", "ResumeTimeout reached", RUNNING),
        ("ALLOCATED POWERING_UP", "", STOPPING),
        ("ALLOCATED POWERING_UP", "", GONE),
    ],
)
def test_only_a_machine_that_never_registered_speaks_against_its_offering(
    registered: float, flags: str, reason: str, state: InstanceState
) -> None:
    """A slurmctld that was killed recalls as booting what has long run jobs."""
    i = intent("n1", registered=registered)
    actions = decide(view([node("n1", flags, reason)], [], [i], [machine(i, state)]))
    assert [a.blame for a in actions if isinstance(a, Terminate | Retire | Close)] == [not registered]


@pytest.mark.parametrize(
    ("registered", "seconds", "set_down"), [(NOW - 500, 11, True), (0.0, 11, False), (NOW - 500, 9, False)]
)
def test_a_node_that_boots_by_slurms_records_and_has_registered_is_set_down(
    registered: float, seconds: float, set_down: bool
) -> None:
    """Set down, not only given another machine: its job, if one has begun there, must come back with a higher restart count."""
    i = intent("n1", registered=registered)
    since = {"n1": NOW - seconds}
    v = view([node("n1", COMING)], [], [i], [machine(i)], stranded_since=since)
    assert ("SetDown" in kinds(decide(v))) is set_down
    powered_down = (Request("suspend", ("n1",), NOW - 20, Path("r")),)
    again = view([node("n1", COMING)], [], [i], [machine(i)], stranded_since=since, requests=powered_down)
    assert kinds(decide(again)) == ["Terminate"], "it boots anew"


@pytest.mark.parametrize(
    ("flags", "reason", "undrained"),
    [
        ("IDLE DRAIN", "Duplicate jobid", True),
        ("MIXED DRAIN", "Duplicate jobid", True),
        ("IDLE DRAIN COMPLETING", "Duplicate jobid", False),
        ("IDLE DRAIN", "Kill task failed", False),
        ("IDLE DRAIN", "broken fan", False),
        ("IDLE", "Duplicate jobid", False),
    ],
)
def test_a_node_drained_for_a_job_that_was_launched_twice_is_undrained_once_that_has_left(
    flags: str, reason: str, undrained: bool
) -> None:
    i = intent("n1")
    actions = decide(view([node("n1", flags, reason)], [], [i], [machine(i)]))
    assert ("Undrain" in kinds(actions)) is undrained
    assert set(kinds(actions)) <= {"Undrain"}


def test_a_suspend_request_ends_the_old_machine_before_the_name_is_used_again() -> None:
    old = intent("n1", age=500, launch_id="old")
    suspend = Request("suspend", ("n1",), NOW - 20, Path("r"))
    v = view([node("n1", COMING)], [], [old], [machine(old)], requests=(suspend,))
    assert kinds(decide(v)) == ["Terminate"]
    old = intent("n1", RETIRED, age=500, launch_id="old")
    assert kinds(decide(view([node("n1", COMING)], [], [old], [machine(old, STOPPING)]))) == []
    assert kinds(decide(view([node("n1", COMING)], [], [old], [machine(old, GONE)]))) == ["Close", "Launch"]
    assert kinds(decide(view([node("n1", COMING)], [], [old], [machine(old, GONE, billed=True)]))) == ["Terminate"]


def test_a_request_is_dropped_once_nothing_is_left_of_it() -> None:
    i = intent("n1", age=500)
    request = Request("suspend", ("n1",), NOW - 1, Path("r"))
    assert DropRequest(Path("r")) not in decide(
        view([node("n1", "IDLE POWERING_DOWN")], [], [i], [machine(i)], requests=(request,))
    )
    retired = intent("n1", RETIRED, age=500)
    assert DropRequest(Path("r")) in decide(
        view([node("n1", "IDLE POWERING_DOWN")], [], [retired], [], requests=(request,))
    )
    resume = Request("resume", ("n1", "elsewhere"), NOW - 1, Path("r"))
    assert DropRequest(Path("r")) in decide(view(requests=(resume,)))
    assert decide(view(requests=(resume,), known_nodes=None)) == ()


def test_a_replaced_launch_is_ended() -> None:
    old, new = intent("n1", age=500, launch_id="old"), intent("n1", age=10, launch_id="new")
    actions = decide(view([node("n1", COMING)], [], [old, new], [machine(old), machine(new)]))
    assert [(a.launch_id, a.why) for a in actions if isinstance(a, Terminate)] == [
        ("old", "replaced by a newer launch")
    ]


def test_a_node_that_slurm_does_not_know_any_more() -> None:
    i = intent("gone", age=500)
    assert decide(view([], [], [i], [machine(i)], absent_since={"gone": NOW - 60})) == ()
    assert kinds(decide(view([], [], [i], [machine(i)], absent_since={"gone": NOW - 130}))) == ["Terminate"]


def test_offerings_are_asked_in_order_but_for_those_that_cool() -> None:
    launch = decide(view([node("n1", COMING)], offerings=cooled(A.id)))[0]
    assert isinstance(launch, Launch)
    assert launch.offerings == (B.id,)
    recently = {A.id: OfferingState(A.id, reclaimed_until=NOW + 100)}
    launch = decide(view([node("n1", COMING)], offerings=recently))[0]
    assert isinstance(launch, Launch)
    assert launch.offerings == (B.id, A.id)


def test_a_job_whose_replacement_can_not_be_bought_is_told_why() -> None:
    prepared = (Replacement(1, "n1", NOW - 1, "reclaimed"),)
    actions = decide(
        view([node("n1", "IDLE POWERING_UP")], [waiting(1)], offerings=cooled(A.id, B.id), replacements=prepared)
    )
    (told,) = [a for a in actions if isinstance(a, Report)]
    assert told.job_id == 1
    assert told.text.startswith("no capacity: n1: ")
    assert "none left" in told.text


def test_cases_2_nothing_to_buy_sets_the_node_down_and_says_so_and_it_comes_back_when_there_is() -> None:
    j = job(nodes=("n1",), states="RUNNING CONFIGURING")
    actions = decide(view([node("n1", COMING)], [j], offerings=cooled(A.id, B.id)))
    assert next(a for a in actions if isinstance(a, SetDown)).reason.startswith("spotburst: no capacity")
    assert "none left" in next(a for a in actions if isinstance(a, Report)).text
    down = node("n1", "DOWN POWERED_DOWN", "spotburst: no capacity: x")
    assert decide(view([down], offerings=cooled(A.id, B.id))) == ()
    assert kinds(decide(view([down], offerings=cooled(A.id)))) == ["Resume"]
    assert decide(view([node("n1", COMING)], offerings=cooled(A.id, B.id, seconds=5))) == (), "a short wait is waited"


def test_a_silent_node_goes_down_after_silent_down_unless_all_are_silent() -> None:
    i = intent("n1")
    silent = {"silent_since": {"n1": NOW - 61}}
    assert "SetDown" in kinds(decide(view([node("n1", "ALLOCATED")], [], [i], [machine(i)], **silent)))
    assert "SetDown" not in kinds(
        decide(view([node("n1", "ALLOCATED")], [], [i], [machine(i)], own_network_suspect=True, **silent))
    )
    assert kinds(decide(view([node("n1", "ALLOCATED")], [], [i], [machine(i)], silent_since={"n1": NOW - 59}))) == []


def test_a_node_without_a_machine_is_left_alone_unless_it_is_silent() -> None:
    """Set down, powered down, its machine's end written down; then slurmctld is killed, and recalls the job as running there."""
    up = node("n1", "ALLOCATED")
    assert kinds(decide(view([up], [], [], []))) == []
    assert kinds(decide(view([up], [], [], [], silent_since={"n1": NOW - 59}))) == []
    assert kinds(decide(view([up], [], [], [], silent_since={"n1": NOW - 61}, own_network_suspect=True))) == []
    assert kinds(decide(view([up], [], [], [], silent_since={"n1": NOW - 61}))) == ["SetDown"]


def test_several_nodes_of_a_job_are_one_gang() -> None:
    j = job(7, nodes=("n1", "n2"), states="RUNNING CONFIGURING")
    actions = decide(view([node("n1", COMING), node("n2", COMING)], [j]))
    assert {a.gang for a in actions if isinstance(a, Launch)} == {"job-7-0"}


def test_a_job_that_runs_on_a_node_that_is_off_by_slurms_records_is_requeued() -> None:
    """slurmctld was killed and recalls an older state of the node than of the job."""
    off, runs = [node("n1", "IDLE POWERED_DOWN")], [job(7, nodes=("n1",))]
    assert "SetDown" not in kinds(decide(view(off, runs, stranded_since={"n1": NOW - 5})))
    (down,) = [a for a in decide(view(off, runs, stranded_since={"n1": NOW - 11})) if isinstance(a, SetDown)]
    assert (down.node, "job 7" in down.reason) == ("n1", True)
    after = [node("n1", "DOWN POWERED_DOWN", down.reason)]
    assert [a.node for a in decide(view(after)) if isinstance(a, Resume)] == ["n1"]
