"""The node table: each line of it, each trap of docs/cases.md, and what must hold for any combination whatever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.actions import (
    NOWHERE,
    Action,
    Adopt,
    Close,
    DropRequest,
    Launch,
    NoteRegistered,
    PowerDown,
    Report,
    Resume,
    Retire,
    SetAddress,
    SetDown,
    Terminate,
    Undrain,
)
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.ledger_records import Intent, IntentState, Replacement
from slurm_plugin.placement import OfferingState
from slurm_plugin.reconcile import View, decide
from slurm_plugin.requests import Request
from slurm_plugin.slurm.records import Node
from tests.unit.reconcile.views import NOW, A, B, intent, job, machine, node, view, waiting

UP = "IDLE"
COMING = "ALLOCATED POWERING_UP NOT_RESPONDING"
LIVE, ASKED, RETIRED = IntentState.LIVE, IntentState.ASKED, IntentState.RETIRED
RUNNING, GONE, STOPPING = InstanceState.RUNNING, InstanceState.GONE, InstanceState.STOPPING


def kinds(actions: tuple[Action, ...]) -> list[str]:
    return [type(a).__name__ for a in actions]


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
    ("registered", "silent", "suspect", "set_down"),
    [
        (NOW - 500, 61, False, True),
        (0.0, 61, False, False),
        (NOW - 500, 59, False, False),
        (NOW - 500, 61, True, False),
    ],
)
def test_the_silence_of_a_node_that_is_recalled_as_booting_counts(
    registered: float, silent: float, suspect: bool, set_down: bool
) -> None:
    i = intent("n1", registered=registered)
    since = {"n1": NOW - silent}
    v = view([node("n1", COMING)], [], [i], [machine(i)], silent_since=since, own_network_suspect=suspect)
    assert ("SetDown" in kinds(decide(v))) is set_down
    powered_down = (Request("suspend", ("n1",), NOW - 20, Path("r")),)
    again = view([node("n1", COMING)], [], [i], [machine(i)], silent_since=since, requests=powered_down)
    assert kinds(decide(again)) == ["Terminate"], "it boots anew"


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


def cooled(*ids: str, seconds: float = 300.0) -> dict[str, OfferingState]:
    return {i: OfferingState(i, 1, refused_until=NOW + seconds, text="Insufficient: none left") for i in ids}


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


# --- any combination --------------------------------------------------------------------------------------------------

FLAGS = ["IDLE", "ALLOCATED", "MIXED", "DOWN", "ERROR", "UNKNOWN", "FUTURE", "CLOUD", "DRAIN", "FAIL", "COMPLETING", "POWERED_DOWN",
         "POWERING_DOWN", "POWERING_UP", "POWER_UP", "POWER_DOWN", "NOT_RESPONDING", "MAINT", "RESERVED", "PLANNED", "INVALID_REG",
         "REBOOT_ISSUED", "BLOCKED", "SOMETHING_NEW"]  # fmt: skip
REASONS = ["", "spotburst: x", "spotburst: no capacity: x", "spotburst: aws reclaim by 2026-05-02T08:22:00Z", "Not responding",
           "ResumeTimeout reached", "Ann", "spotburst: aws reclaim by not a time"]  # fmt: skip


@st.composite
def views(draw: st.DrawFn) -> View:
    nodes: list[Node] = []
    intents: list[Intent] = []
    machines = []
    for name in ("n1", "n2", "b1"):
        nodes.append(
            Node(
                name,
                draw(st.frozensets(st.sampled_from(FLAGS), min_size=1)),
                draw(st.sampled_from(REASONS)),
                partitions=("spot",),
            )
        )
        for k in range(draw(st.integers(0, 2))):
            i = intent(
                name,
                draw(st.sampled_from([ASKED, LIVE, RETIRED])),
                draw(st.sampled_from([1.0, 20.0, 500.0])),
                f"{name}-{k}",
                registered=draw(st.sampled_from([0.0, NOW - 1.0])),
            )
            if draw(st.booleans()):
                intents.append(i)
            if draw(st.booleans()):
                state = draw(st.sampled_from(list(InstanceState)))
                machines.append(
                    machine(
                        i,
                        state,
                        billed=draw(st.booleans()) if state is GONE else True,
                        deadline=draw(st.none() | st.just(NOW)),
                    )
                )
    jobs = [
        job(
            n,
            draw(st.sampled_from(["RUNNING", "PENDING", "PENDING COMPLETING", "RUNNING CONFIGURING", "COMPLETED", "FAILED", "SUSPENDED"])),
            draw(st.sampled_from([(), ("n1",), ("n1", "b1"), ("elsewhere",)])),
            reason=draw(st.sampled_from(["None", "BeginTime", "BadConstraints", "launch_failed_requeued_held"])),
            restart_count=draw(st.integers(0, 2)),
            priority=draw(st.sampled_from([0, 10])),
            preempt_time=draw(st.sampled_from([0, int(NOW) - 500])),
            eligible_time=int(NOW) + draw(st.sampled_from([-5, 100, 9999])),
            submit_time=int(NOW) - 10,
            features=draw(st.sampled_from(["", "spot", "fast&big", "[a*2]"])),
        )
        for n in range(1, draw(st.integers(1, 4)))
    ]  # fmt: skip
    names = st.sampled_from(["n1", "n2", "b1"])
    return view(
        nodes, jobs, intents, machines,
        cloud=draw(st.booleans()),
        offerings=draw(st.sampled_from([{}, cooled(A.id), cooled(A.id, B.id)])),
        silent_since=draw(st.dictionaries(names, st.sampled_from([NOW - 5, NOW - 30, NOW - 100]))),
        own_network_suspect=draw(st.booleans()),
        missing_since={i.launch_id: NOW - 100 for i in intents},
        requests=tuple(
            Request(draw(st.sampled_from(["resume", "suspend", "resume_fail"])), (draw(names),), NOW - draw(st.sampled_from([1.0, 100.0])), Path(str(k)))
            for k in range(draw(st.integers(0, 2)))
        ),
        known_nodes=draw(st.sampled_from([None, {}, {n.name: n for n in nodes}])),
        known_jobs=draw(st.sampled_from([None, tuple(jobs)])),
    )  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(views())
def test_whatever_the_view_deciding_never_raises_nor_contradicts_itself(v: View) -> None:
    actions = decide(v)
    assert actions == decide(v)
    assert len(set(actions)) == len(actions)
    launched = [a.node for a in actions if isinstance(a, Launch)]
    assert len(launched) == len(set(launched))
    listed = [] if v.clouds["sim"] is None else v.clouds["sim"].instances
    living = {m.node for m in listed if m.state is not GONE or m.billed}
    for a in actions:
        if isinstance(a, Launch):
            assert a.node not in living
            assert v.clouds["sim"] is not None
            assert v.nodes is not None
            assert "POWERING_UP" in v.nodes[a.node].states
        if isinstance(a, Resume):
            assert a.node not in living
    ended = {a.launch_id for a in actions if isinstance(a, Terminate | Retire)}
    assert not ended & {a.launch_id for a in actions if isinstance(a, Launch)}
    assert not ended & {a.launch_id for a in actions if isinstance(a, Close)}
    for kind in (SetDown, PowerDown, Resume, Undrain):
        names = [a.node for a in actions if isinstance(a, kind)]
        assert len(names) == len(set(names)), kind
    downs = {a.node for a in actions if isinstance(a, SetDown)}
    assert not downs & {a.node for a in actions if isinstance(a, Resume | Launch)}
    if v.nodes is None:
        assert not [
            a
            for a in actions
            if isinstance(a, Launch | SetDown | PowerDown | Resume | Terminate) and not _retired(v, a)
        ]
    if v.clouds["sim"] is None:
        assert not [a for a in actions if isinstance(a, Launch | Close | Adopt | Terminate)]


def _retired(v: View, action: Action) -> bool:
    return isinstance(action, Terminate) and any(
        i.launch_id == action.launch_id and (i.state is RETIRED or len([x for x in v.intents if x.node == i.node]) > 1)
        for i in v.intents
    )


def test_a_job_that_runs_on_a_node_that_is_off_by_slurms_records_is_requeued() -> None:
    """slurmctld was killed and recalls an older state of the node than of the job."""
    off, runs = [node("n1", "IDLE POWERED_DOWN")], [job(7, nodes=("n1",))]
    assert "SetDown" not in kinds(decide(view(off, runs, stranded_since={"n1": NOW - 5})))
    (down,) = [a for a in decide(view(off, runs, stranded_since={"n1": NOW - 11})) if isinstance(a, SetDown)]
    assert (down.node, "job 7" in down.reason) == ("n1", True)
    after = [node("n1", "DOWN POWERED_DOWN", down.reason)]
    assert [a.node for a in decide(view(after)) if isinstance(a, Resume)] == ["n1"]
