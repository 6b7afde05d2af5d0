"""Notices, prepared nodes, begin times: each line of the tables, and who is never touched."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from job_wrapper.comments import with_left
from slurm_plugin.actions import (
    Action,
    Drain,
    EndNotice,
    EndReplacement,
    KeepIdle,
    PowerDown,
    PowerUp,
    RecordNotice,
    StartNow,
    Undrain,
)
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.ledger_records import OpenNotice, Replacement, SeenJob
from slurm_plugin.placement import OfferingState
from slurm_plugin.reconcile import decide
from slurm_plugin.reconcile.comeback import LEFT_FOR
from slurm_plugin.reconcile.flags import agents_notice, cloud_reason
from slurm_plugin.reconcile.view import BootFacts
from slurm_plugin.slurm.records import Partition
from tests.unit.reconcile.views import BIG, NOW, A, B, intent, job, machine, node, policy, view, waiting

I1 = intent("n1")
BUSY = node("n1", "ALLOCATED")
AGENT = "spotburst: aws reclaim by 2027-01-15T08:01:00Z"  # NOW + 60
DRAINED = node("n1", "ALLOCATED DRAIN", AGENT)
RECLAIMING = machine(I1, InstanceState.RECLAIMING, deadline=NOW + 60, notice_id="event-1")
SEEN = {1: SeenJob(1, 0, "spot", ("n1",))}


def of(actions: tuple[Action, ...], kind: type[Any]) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def open_notice(notice_id: str = "event-1", launch_id: str = I1.launch_id) -> OpenNotice:
    return OpenNotice(notice_id, "n1", launch_id, A.id, NOW + 60, "cloud", NOW - 5)


# --- notices ----------------------------------------------------------------------------------------------------------


def test_a_notice_of_the_agent_is_recorded_once_with_its_deadline() -> None:
    actions = decide(view([DRAINED], [], [I1], [machine(I1)]))
    assert of(actions, RecordNotice) == [
        RecordNotice(f"{I1.launch_id}:{int(NOW) + 60}", "n1", I1.launch_id, A.id, NOW + 60, "agent")
    ]
    again = decide(view([DRAINED], [], [I1], [machine(I1)], notices=(open_notice(f"{I1.launch_id}:{int(NOW) + 60}"),)))
    assert not of(again, RecordNotice)


def test_a_notice_in_the_clouds_listing_is_recorded_under_its_own_id_and_drains() -> None:
    actions = decide(view([BUSY], [], [I1], [RECLAIMING]))
    assert of(actions, RecordNotice)[0].notice_id == "event-1"
    assert of(actions, Drain) == [Drain("n1", "spotburst: sim reclaim by 2027-01-15T08:01:00Z, told by the cloud")]


def test_a_stable_reclaiming_state_drains_once() -> None:
    drained = node("n1", "ALLOCATED DRAIN", cloud_reason("sim", NOW + 60))
    assert decide(view([drained], [], [I1], [RECLAIMING], notices=(open_notice(),))) == ()


def test_an_idle_reclaimed_node_is_powered_down_so_that_its_name_is_free() -> None:
    idle = node("n1", "IDLE DRAIN", AGENT)
    v = view([idle], [], [I1], [machine(I1)], notices=(open_notice(),))
    assert of(decide(v), PowerDown) == [PowerDown("n1", "is being reclaimed and runs nothing")]
    completing = view(
        [idle], [job(nodes=("n1",), states="PENDING COMPLETING")], [I1], [machine(I1)], notices=(open_notice(),)
    )
    assert not of(decide(completing), PowerDown)


def test_withdrawn_over_and_outlived() -> None:
    mine = node("n1", "ALLOCATED DRAIN", cloud_reason("sim", NOW + 60))
    withdrawn = decide(view([mine], [], [I1], [machine(I1)], notices=(open_notice(),)))
    assert of(withdrawn, EndNotice) == [EndNotice("event-1", "n1", "withdrawn")]
    assert of(withdrawn, Undrain)
    unknown = decide(view([mine], [], [I1], cloud=False, notices=(open_notice(),)))
    assert not of(unknown, EndNotice)
    assert not of(unknown, Undrain)
    over = decide(view([node("n1")], notices=(open_notice(),)))
    assert of(over, EndNotice) == [EndNotice("event-1", "n1", "over")]
    other = decide(view([BUSY], [], [I1], [machine(I1)], notices=(open_notice(launch_id="an older machine"),)))
    assert of(other, EndNotice)[0].outcome == "over"
    late = node("n1", "ALLOCATED DRAIN", "spotburst: aws reclaim by 2027-01-15T07:55:00Z")
    outlived = decide(view([late], [], [I1], [machine(I1)], notices=(open_notice(),)))
    assert of(outlived, Undrain)
    assert of(outlived, EndNotice)[0].outcome == "withdrawn"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (AGENT, (True, NOW + 60)),
        ("spotburst: gcp reclaim", (True, None)),
        ("spotburst: aws stop by 2027-01-15T08:01:00Z", (True, NOW + 60)),
        ("spotburst: aws reclaim by tomorrow", (True, None)),
        ("spotburst: aws rebalance by 2027-01-15T08:01:00Z", (False, None)),
        ("Ann: spotburst: aws reclaim", (False, None)),
        (cloud_reason("sim", NOW + 60), (False, None)),
        ("", (False, None)),
    ],
)
def test_the_agents_reason(reason: str, expected: tuple[bool, float | None]) -> None:
    assert agents_notice(node("n1", "ALLOCATED DRAIN", reason)) == expected
    assert agents_notice(node("n1", "ALLOCATED", reason)) == (False, None)


def test_the_agents_reason_is_what_the_agent_writes() -> None:
    from job_wrapper.agent import drain_reason
    from job_wrapper.notice.types import Notice

    notice = Notice("aws", "reclaim", "x", NOW, NOW + 60)
    assert agents_notice(node("n1", "ALLOCATED DRAIN", drain_reason(notice))) == (True, NOW + 60)


# --- preparing --------------------------------------------------------------------------------------------------------


def test_a_reclaimed_jobs_replacement_is_prepared_once() -> None:
    v = view([DRAINED], [job(nodes=("n1",))], [I1], [machine(I1)])
    assert [(a.node, a.because) for a in of(decide(v), PowerUp)] == [("n2", "n1 reclaimed")]
    prepared = Replacement(1, "n2", NOW - 5, "n1 reclaimed")
    booting = replace(v, replacements=(prepared,), nodes={**(v.nodes or {}), "n2": node("n2", "IDLE POWERING_UP")})
    assert not of(decide(booting), PowerUp)
    lost = replace(v, replacements=(prepared,), nodes={**(v.nodes or {}), "n2": node("n2", "DOWN", "spotburst: x")})
    assert of(decide(lost), EndReplacement) == [EndReplacement(1, "n2", "lost")]
    assert [a.node for a in of(decide(lost), PowerUp)] == ["n3"]


def test_an_idle_node_is_replacement_enough() -> None:
    i2 = intent("n2")
    v = view([DRAINED, node("n2", "IDLE")], [job(nodes=("n1",))], [I1, i2], [machine(I1), machine(i2)])
    assert not of(decide(v), PowerUp)
    two = replace(v, jobs=(job(1, nodes=("n1",)), job(2, nodes=("n1",))))
    assert [a.node for a in of(decide(two), PowerUp)] == ["n3"], "one idle node serves one job"


@pytest.mark.parametrize("changes", [{"requeue": False}, {"batch": False}, {"partition": "elsewhere"}])
def test_no_replacement_for_a_job_that_slurm_would_not_bring_back(changes: dict[str, Any]) -> None:
    assert not of(decide(view([DRAINED], [job(nodes=("n1",), **changes)], [I1], [machine(I1)])), PowerUp)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, ["n2"]),
        ({"excluded_nodes": ("n2",)}, ["n3"]),
        ({"required_nodes": ("n3",)}, ["n3"]),
        ({"required_nodes": ("n1",)}, []),
        ({"features": "spot"}, ["n2"]),
        ({"features": "fast"}, ["b1"]),
        ({"features": "fast|spot"}, ["n2"]),
        ({"features": "fast&absent"}, []),
        ({"features": "[fast*2]"}, []),
        ({"gpus_per_node": 2}, ["b1"]),
        ({"gpus_per_node": 8}, []),
    ],
)
def test_the_replacement_fits_the_job(changes: dict[str, Any], chosen: list[str]) -> None:
    assert [
        a.node for a in of(decide(view([DRAINED], [job(nodes=("n1",), **changes)], [I1], [machine(I1)])), PowerUp)
    ] == chosen


def test_a_larger_nodeset_serves_when_the_own_one_is_exhausted_but_not_a_smaller_one() -> None:
    taken = [DRAINED, node("n2", "ALLOCATED"), node("n3", "DOWN", "Ann")]
    assert [a.node for a in of(decide(view(taken, [job(nodes=("n1",))], [I1], [machine(I1)])), PowerUp)] == ["b1"]
    b1 = replace(intent("b1"), nodeset="big", offering_id=BIG.id)
    drained = replace(DRAINED, name="b1")
    assert not of(decide(view([drained], [job(nodes=("b1",))], [b1], [machine(b1)])), PowerUp)


def test_nothing_is_powered_up_that_cant_be_bought_or_for_half_a_job() -> None:
    cool = {o: OfferingState(o, 1, refused_until=NOW + 300) for o in (A.id, B.id, BIG.id)}
    assert not of(decide(view([DRAINED], [job(nodes=("n1",))], [I1], [machine(I1)], offerings=cool)), PowerUp)
    wide = job(nodes=("n1", "n2", "n3", "b1", "x"), node_count=5)
    assert not of(decide(view([DRAINED], [wide], [I1], [machine(I1)])), PowerUp)


def test_a_preempted_job_needs_all_its_nodes_replaced() -> None:
    two = [node("n1", "ALLOCATED"), node("n2", "ALLOCATED")]
    j = job(nodes=("n1", "n2"), preempt_time=int(NOW) - 2, end_time=int(NOW) + 20, start_time=int(NOW) - 500)
    i2 = intent("n2")
    assert sorted(a.node for a in of(decide(view(two, [j], [I1, i2], [machine(I1), machine(i2)])), PowerUp)) == [
        "b1",
        "n3",
    ]
    cancel = {"spot": Partition("spot", ("n1",), preempt_mode="CANCEL")}
    assert not of(decide(view(two, [j], [I1, i2], [machine(I1), machine(i2)], partitions=cancel)), PowerUp)


def test_a_silent_node_gets_a_replacement_after_silent_prepare() -> None:
    base: dict[str, Any] = {"jobs": [job(nodes=("n1",))], "intents": [I1], "machines": [machine(I1)]}
    assert not of(decide(view([BUSY], silent_since={"n1": NOW - 19}, **base)), PowerUp)
    assert of(decide(view([BUSY], silent_since={"n1": NOW - 21}, **base)), PowerUp)[0].because == "n1 does not answer"


def test_a_replacement_no_longer_needed_is_released() -> None:
    prepared = (Replacement(1, "n2", NOW - 50, "x"),)
    i2 = intent("n2")
    for flags, force in (("IDLE", False), ("IDLE POWERING_UP", True), ("IDLE POWER_UP POWERED_DOWN", True)):
        v = view(
            [BUSY, node("n2", flags)], [job(nodes=("n1",))], [I1, i2], [machine(I1), machine(i2)], replacements=prepared
        )
        assert of(decide(v), PowerDown) == [PowerDown("n2", "no longer needed", force)]
        assert of(decide(v), EndReplacement) == [EndReplacement(1, "n2", "released")]
    taken = view(
        [BUSY, node("n2", "ALLOCATED")],
        [job(2, nodes=("n2",))],
        [I1, i2],
        [machine(I1), machine(i2)],
        replacements=prepared,
    )
    assert not of(decide(taken), PowerDown)
    used = view([node("n2", "ALLOCATED")], [job(1, nodes=("n2",))], [i2], [machine(i2)], replacements=prepared)
    assert of(decide(used), EndReplacement) == [EndReplacement(1, "n2", "used")]


# --- begin times ------------------------------------------------------------------------------------------------------

I2 = intent("n2")
READY: dict[str, Any] = {"intents": [I2], "machines": [machine(I2)]}


def test_a_waiting_job_is_started_when_its_node_is_up_and_idle() -> None:
    prepared = (Replacement(1, "n2", NOW - 5, "x"),)
    booting = view([node("n2", "IDLE POWERING_UP")], [waiting()], replacements=prepared, seen=SEEN, **READY)
    assert not of(decide(booting), StartNow)
    assert not of(decide(booting), PowerUp)
    up = view([node("n2", "IDLE")], [waiting()], replacements=prepared, seen=SEEN, **READY)
    assert of(decide(up), StartNow) == [StartNow(1, "1", 1, ("n2",))]
    silent = replace(up, silent_since={"n2": NOW - 1})
    assert not of(decide(silent), StartNow)


@pytest.mark.parametrize(("ran_on", "since", "starts"), [("n2", 1, False), ("n2", 2, True), ("n1", 1, True)])
def test_a_node_that_the_job_ran_on_is_left_alone_until_its_launches_count_again(
    ran_on: str, since: int, starts: bool
) -> None:
    j, seen = waiting(submit_time=int(NOW) - since), {1: SeenJob(1, 0, "spot", (ran_on,))}
    assert bool(of(decide(view([node("n2", "IDLE")], [j], seen=seen, **READY)), StartNow)) is starts


def marked(seconds: int = 5, nodes: str = "n1") -> str:
    """Of a wrapper that left them so many seconds ago."""
    return with_left("mine", [nodes], NOW - seconds)


def test_a_job_is_not_started_while_slurm_could_use_a_node_that_it_left_because_it_goes_away() -> None:
    """Nobody but its wrapper has heard of the notice yet."""
    j, both = waiting(comment=marked()), {"intents": [I1, I2], "machines": [machine(I1), machine(I2)], "seen": SEEN}
    v = view([node("n1", "IDLE")], [j], intents=[I1], machines=[machine(I1)], seen=SEEN)
    assert [a.node for a in of(decide(v), PowerUp)] == ["n2"], "and it is dealt another"
    assert not of(decide(v), StartNow)
    prepared = view([node("n1", "IDLE"), node("n2", "IDLE")], [j], **both)
    assert not of(decide(prepared), StartNow), "Slurm might take n1"
    for over in (node("n1", "IDLE DRAIN", AGENT), node("n1", "DOWN"), node("n1", "ALLOCATED"), node("n1")):
        assert of(decide(view([over, node("n2", "IDLE")], [j], **both)), StartNow)[0].nodes == ("n2",)


@pytest.mark.parametrize("comment", [marked(LEFT_FOR + 1), marked(nodes="n9"), marked(nodes="n2"), "left n1"])
def test_a_mark_that_is_old_or_names_a_node_that_the_job_was_not_on_keeps_nothing_from_it(comment: str) -> None:
    v = view([node("n1", "IDLE")], [waiting(comment=comment)], intents=[I1], machines=[machine(I1)], seen=SEEN)
    assert of(decide(v), StartNow)


def test_a_node_that_has_another_machine_since_is_as_good_as_any() -> None:
    newer = intent("n1", age=2.0)
    v = view([node("n1", "IDLE")], [waiting(comment=marked())], intents=[newer], machines=[machine(newer)], seen=SEEN)
    assert of(decide(v), StartNow)


def test_nodes_that_were_looked_at_before_the_requeue_may_have_been_drained_since() -> None:
    j, seen = waiting(submit_time=int(NOW) - 5), {1: SeenJob(1, 0, "spot", ("n2",))}
    v = view([node("n2", "IDLE")], [j], seen=seen, **READY)
    assert of(decide(v), StartNow)
    assert not of(decide(replace(v, began=NOW - 4)), StartNow), "Slurm took 4 s to answer"


def test_a_waiting_job_without_a_replacement_gets_one_or_an_idle_node_at_once() -> None:
    assert [a.node for a in of(decide(view([], [waiting()], seen=SEEN)), PowerUp)] == ["n1"]
    assert of(decide(view([], [waiting()])), PowerUp), "also when it was never seen running: the manager was dead then"
    assert of(decide(view([node("n2", "IDLE")], [waiting()], **READY)), StartNow)


@pytest.mark.parametrize(
    "changes",
    [
        {"restart_count": 0},
        {"eligible_time": int(NOW) + 3600},
        {"priority": 0},
        {"reason": "Dependency"},
        {"reason": "JobHeldUser", "priority": 0},
        {"batch": False},
        {"partition": "elsewhere"},
        {"states": "PENDING COMPLETING"},
    ],
)
def test_whose_begin_time_is_never_touched(changes: dict[str, Any]) -> None:
    states = changes.pop("states", None)
    j = waiting(**changes)
    j = replace(j, states=frozenset(states.split())) if states else j
    assert not of(decide(view([node("n2", "IDLE")], [j], seen=SEEN, **READY)), StartNow)


def test_a_job_already_seen_in_this_attempt_waits_for_something_of_its_own() -> None:
    seen = {1: SeenJob(1, 1, "spot", ("n1",))}
    assert not of(decide(view([node("n2", "IDLE")], [waiting()], seen=seen, **READY)), StartNow)


def test_a_replacement_is_kept_for_a_started_job_until_it_runs() -> None:
    started = waiting(reason="None", eligible_time=int(NOW) - 1)
    v = view([node("n2", "IDLE")], [started], replacements=(Replacement(1, "n2", NOW - 5, "x"),), seen=SEEN, **READY)
    assert decide(v) == ()


@pytest.mark.parametrize(
    ("coming", "idle", "flags", "told"),
    [
        (job(nodes=("n1",)), 11, "IDLE", True),
        (job(nodes=("n1",)), 9, "IDLE", False),
        (job(nodes=("n1",)), 11, "IDLE POWER_DOWN", False),
        (job(nodes=("n1",)), 11, "IDLE DRAIN", False),
        (job(nodes=("n1",)), 11, "IDLE POWERING_UP", False),
        (waiting(1, priority=9), 11, "IDLE", True),
        (job(1, "COMPLETING", ("n1",), restart_count=1), 11, "IDLE", True),
        (waiting(1, reason="Dependency", eligible_time=0), 11, "IDLE", False),
    ],
)
def test_a_prepared_node_is_told_that_it_is_idle_before_its_suspend_time_is_over(
    coming: Any, idle: int, flags: str, told: bool
) -> None:
    n2 = replace(node("n2", flags), last_busy=int(NOW) - idle)
    prepared = (Replacement(1, "n2", NOW - 60, "reclaimed"),)
    v = view([DRAINED, n2], [coming], [I1, intent("n2")], [machine(I1), machine(intent("n2"))], replacements=prepared)
    assert bool(of(decide(v), KeepIdle)) is told
    assert not of(decide(replace(v, replacements=(), jobs=())), KeepIdle), "for nobody"


@pytest.mark.parametrize(("shown", "idle", "told"), [(300, 99, False), (300, 100, True), (6, 2, True), (None, 10, True), (math.inf, 1e6, False)])  # fmt: skip
def test_it_goes_by_the_suspend_time_that_the_partition_shows(shown: float | None, idle: float, told: bool) -> None:
    n2 = replace(node("n2", "IDLE"), last_busy=int(NOW - idle))
    shows = {"spot": Partition("spot", ("n1", "n2"), preempt_mode="REQUEUE", suspend_time=shown)}
    prepared = (Replacement(1, "n2", NOW - 60, "reclaimed"),)
    v = view([n2], [waiting(1)], [intent("n2")], [machine(intent("n2"))], replacements=prepared, partitions=shows)
    assert bool(of(decide(v), KeepIdle)) is told


def test_two_waiting_jobs_never_get_the_same_node() -> None:
    v = view([node("n2", "IDLE")], [waiting(1), waiting(2)], **READY)
    assert [a.job_id for a in of(decide(v), StartNow)] == [1]
    assert [(a.job_id, a.node) for a in of(decide(v), PowerUp)] == [(2, "n1")]


def test_a_multi_node_job_starts_only_when_all_its_nodes_are_ready() -> None:
    j = waiting(node_count=2)
    assert not of(decide(view([node("n2", "IDLE")], [j], seen=SEEN, **READY)), StartNow)
    i3 = intent("n3")
    both = view([node("n2", "IDLE"), node("n3", "IDLE")], [j], [I2, i3], [machine(I2), machine(i3)], seen=SEEN)
    assert of(decide(both), StartNow)[0].nodes == ("n2", "n3")


def test_five_thousand_nodes_and_ten_thousand_jobs_are_decided_in_linear_time() -> None:
    import time

    names = tuple(f"x{i}" for i in range(5000))
    rules = policy(*names)
    intents = [intent(n) for n in names[:3000]]
    nodes = [node(n, "ALLOCATED") for n in names[:3000]]
    nodes[:200] = [replace(DRAINED, name=n) for n in names[:200]]
    jobs = [job(k, nodes=(names[k],)) for k in range(1, 3000)]
    jobs += [waiting(k) for k in range(3000, 3400)] + [job(k, "PENDING") for k in range(3400, 10000)]
    v = view(nodes, jobs, intents, [machine(i) for i in intents], rules=rules)
    start = time.process_time()
    actions = decide(v)
    assert time.process_time() - start < 30, "not quadratic"
    assert len(of(actions, PowerUp)) > 500


@pytest.mark.parametrize(
    ("answers", "began", "started"),
    [(-60, None, True), (-60, -61, True), (-60, -3, False), (-3, -61, False), (None, None, False)],
)
def test_a_start_that_a_killed_slurmctld_has_forgotten_is_made_up_for(
    answers: float | None, began: float | None, started: bool
) -> None:
    """The manager has seen the attempt that Slurm shows as waiting. What its nodes still run of that is ended when they register."""
    seen = {1: SeenJob(1, 1, "spot", ("n1",))}
    boots = BootFacts(*(None if one is None else NOW + one for one in (began, answers)))
    v = view([node("n2", "IDLE"), node("n1", "IDLE")], [waiting()], seen=seen, boots=boots)
    assert bool(of(decide(v), StartNow)) == started
