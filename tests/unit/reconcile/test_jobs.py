"""Jobs that Slurm does not bring back by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from job_wrapper.store.io_types import Kind
from slurm_plugin.actions import Action, ForgetJob, ForgetReleases, ReleaseJob, RememberJob, Report, RequeueJob
from slurm_plugin.ledger_records import Counter, SeenJob
from slurm_plugin.reconcile import decide
from slurm_plugin.reconcile.view import BootFacts
from slurm_plugin.requeue import RunTail
from slurm_plugin.slurm.records import Partition
from tests.unit.reconcile.views import NOW, intent, job, machine, node, view

I1 = intent("n1")
ON_N1: dict[str, Any] = {"nodes": [node("n1", "ALLOCATED")], "intents": [I1], "machines": [machine(I1)]}


def of(actions: tuple[Action, ...], kind: type[Any]) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def preempted(start: int, end: int, **changes: Any) -> Any:
    return job(
        nodes=("n1",), preempt_time=int(NOW) - 60, start_time=int(NOW) + start, end_time=int(NOW) + end, **changes
    )


@pytest.mark.parametrize(
    ("j", "grace", "requeued"),
    [
        (preempted(-55, 9999), 10, True),  # R29: its times were set anew after it was preempted
        (preempted(-55, 9999), 40, False),
        (preempted(-500, 200), 0, False),  # a QOS's grace is in its end time
        (preempted(-500, -45), 0, True),
        (preempted(-500, -25), 0, False),  # Slurm itself may be 30 s late
        (preempted(-55, 9999, requeue=False), 10, False),
        (preempted(-55, 9999, states="RUNNING CONFIGURING"), 10, False),
        (preempted(-55, 9999, states="RUNNING COMPLETING"), 10, False),
    ],
)
def test_a_preempted_job_that_slurm_forgot_is_requeued(j: Any, grace: int, requeued: bool) -> None:
    partitions = {"spot": Partition("spot", ("n1",), grace_time=grace, preempt_mode="REQUEUE")}
    assert bool(of(decide(view(jobs=[j], partitions=partitions, **ON_N1)), RequeueJob)) == requeued


@pytest.mark.parametrize(
    ("boot", "slurmd", "changes", "requeued"),
    [
        (-50, -50, {}, True),
        (-500, -50, {}, False),  # slurmd was started anew, which its jobs survive
        (-50, -500, {}, False),  # slurmctld's clock was set
        (-98, -98, {}, False),
        (-50, -50, {"requeue": False}, False),
        (-50, -50, {"states": "RUNNING CONFIGURING"}, False),
        (-50, -50, {"states": "PENDING", "start_time": 0}, False),
    ],
)
def test_a_job_whose_node_has_booted_under_it_is_requeued(
    boot: int, slurmd: int, changes: dict[str, Any], requeued: bool
) -> None:
    n1 = replace(node("n1", "ALLOCATED"), boot_time=int(NOW) + boot, slurmd_start_time=int(NOW) + slurmd)
    j = job(**{"nodes": ("n1",), "start_time": int(NOW) - 100, **changes})
    assert bool(of(decide(view(jobs=[j], **{**ON_N1, "nodes": [n1]})), RequeueJob)) == requeued


RUNS = {"nodes": ("n1",), "start_time": int(NOW) - 500, "restart_count": 1, "batch": True}
GONE = RunTail("c/1/main", Kind.INTERRUPTED, "1", 1, 0, 0, True, time=NOW - 200)


@pytest.mark.parametrize(
    ("changes", "tails", "began", "requeued"),
    [
        ({}, [GONE], -190, [False]),
        ({}, [replace(GONE, kind=Kind.SUSPENDED)], -190, [True]),
        ({}, [GONE, replace(GONE, run="c/1/other", kind=Kind.SUSPENDED)], -190, [True]),
        ({}, [GONE, replace(GONE, run="c/1/other", kind=Kind.COMMIT)], -190, []),
        ({}, [GONE, replace(GONE, run="c/1/earlier", kind=Kind.END, restart_count=0)], -190, [False]),
        ({}, [replace(GONE, restart_count=0)], -190, []),  # of the attempt before
        ({}, [replace(GONE, job_id="2")], -190, []),
        ({}, [replace(GONE, time=NOW - 20)], -190, []),  # Slurm is about to end it
        ({}, [replace(GONE, kind=Kind.COMMIT)], -190, []),
        ({}, [replace(GONE, fails=True)], -190, []),  # its script may go on
        (
            {},
            [replace(GONE, time=NOW - 501)],
            -190,
            [],
        ),  # begun once more under the same number: it has not claimed the run yet
        ({}, [], -190, []),
        ({}, [GONE], -30, []),  # its nodes may not have told yet what they run
        ({}, [GONE], -600, []),  # started since
        ({"start_time": int(NOW) - 9999}, [GONE], -5000, []),  # nothing like that is looked for any more
        ({}, [GONE], None, []),
        ({"requeue": False}, [GONE], -190, []),
        ({"batch": False}, [GONE], -190, []),
        ({"states": "RUNNING COMPLETING"}, [GONE], -190, []),
        ({"states": "RUNNING CONFIGURING"}, [GONE], -190, []),
    ],
)
def test_an_attempt_whose_end_a_killed_slurmctld_has_forgotten(
    changes: dict[str, Any], tails: list[RunTail], began: float | None, requeued: list[bool]
) -> None:
    boots = BootFacts(None if began is None else NOW + began, NOW - 100)
    v = view(jobs=[job(**{**RUNS, **changes})], runs={1: tuple(tails)}, boots=boots, **ON_N1)
    assert [action.hold for action in of(decide(v), RequeueJob)] == requeued


def test_preempt_mode_cancel_is_left_to_slurm() -> None:
    partitions = {"spot": Partition("spot", ("n1",), preempt_mode="CANCEL")}
    assert not of(decide(view(jobs=[preempted(-55, 9999)], partitions=partitions, **ON_N1)), RequeueJob)


ENDED = job(states="FAILED", end_time=int(NOW) - 10, start_time=int(NOW) - 500, exit_code=137)
TAIL = RunTail("c/1/main", Kind.COMMIT, "1", 0, 0, 0, True)


def test_a_job_whose_wrapper_was_killed_is_requeued_within_the_window() -> None:
    assert of(decide(view(jobs=[ENDED], runs={1: (TAIL,)})), RequeueJob)[0].why == "the wrapper of c/1/main was killed"
    assert not of(decide(view(jobs=[ENDED])), RequeueJob), "not looked up yet"
    old = replace(ENDED, end_time=int(NOW) - 250)
    assert not of(decide(view(jobs=[old], runs={1: (TAIL,)})), RequeueJob)
    elsewhere = replace(ENDED, partition="elsewhere")
    assert not of(decide(view(jobs=[elsewhere], runs={1: (TAIL,)})), RequeueJob)


def test_what_is_not_brought_back_is_said_once() -> None:
    tail = replace(TAIL, committed=False, barren=1)
    (report,) = of(decide(view(jobs=[ENDED], runs={1: (tail,)})), Report)
    assert report.text.startswith("NoProgress: ")
    said = {("job:1", f"said:{report.key}"): Counter(1, NOW)}
    assert not of(decide(view(jobs=[ENDED], runs={1: (tail,)}, counters=said)), Report)


def held(reason: str, **changes: Any) -> Any:
    return job(states="PENDING", **{"reason": reason, "priority": 0, "restart_count": 1, **changes})


SEEN = {1: SeenJob(1, 0, "spot", ("n1",))}


@pytest.mark.parametrize(
    ("j", "released"),
    [
        (held("launch_failed_requeued_held"), True),
        (held("launch failed requeued held"), True),
        (held("JobHoldMaxRequeue"), True),
        (held("launch_failure_limit_exceeded_requeued_held"), True),
        (held("BadConstraints"), True),
        (held("BadConstraints", restart_count=0), False),
        (held("BadConstraints", job_id=2), False),
        (held("JobHeldUser"), False),
        (held("JobHeldAdmin"), False),
        (held("job_requeued_in_held_state"), False),
    ],
)
def test_what_slurm_holds_by_itself_is_released(j: Any, released: bool) -> None:
    assert bool(of(decide(view(jobs=[j], seen=SEEN)), ReleaseJob)) == released


def test_releases_are_bounded_and_spaced_and_then_reported() -> None:
    def after(count: int, ago: float) -> tuple[Action, ...]:
        counters = {("job:1", "released"): Counter(count, NOW - ago)}
        return decide(view(jobs=[held("launch_failed_requeued_held")], seen=SEEN, counters=counters))

    assert not of(after(1, 5), ReleaseJob)
    assert of(after(1, 11), ReleaseJob)
    assert not of(after(2, 11), ReleaseJob)
    assert not of(after(3, 9999), ReleaseJob)
    assert "stays held" in of(after(3, 9999), Report)[0].text


def test_out_of_bad_constraints_it_is_tried_for_long_ever_more_seldom_and_its_user_told() -> None:
    def after(count: int, ago: float, **changes: Any) -> tuple[Action, ...]:
        counters = {("job:1", "tried-again"): Counter(count, NOW - ago), ("job:1", "released"): Counter(3, NOW)}
        return decide(view(jobs=[held("BadConstraints", **changes)], seen=SEEN, counters=counters))

    waits = []
    for count in range(1, 300):
        wait = next(s for s in (10, 20, 40, 80, 160, 300) if of(after(count, s), ReleaseJob))
        assert not of(after(count, wait - 1), ReleaseJob)
        waits.append(wait)
    assert waits[:6] == [10, 20, 40, 80, 160, 300]
    assert waits[5:] == [300] * 294
    assert not of(after(2, 1), Report)
    assert "is tried again every 5 minutes" in of(after(3, 1), Report)[0].text
    assert not of(after(300, 9999), ReleaseJob)
    assert "stays held" in of(after(300, 9999), Report)[0].text


@pytest.mark.parametrize("kind", ["released", "tried-again"])
def test_releases_are_counted_anew_once_the_job_has_run_well(kind: str) -> None:
    counters = {("job:1", kind): Counter(3, NOW - 1000)}

    def after(ago: int, **changes: Any) -> tuple[Action, ...]:
        ran = job(**{"nodes": ("n1",), "start_time": int(NOW) - ago, **changes})
        return decide(view(jobs=[ran], counters=counters, **ON_N1))

    assert of(after(601), ForgetReleases) == [ForgetReleases(1)]
    assert not of(after(599), ForgetReleases)
    assert not of(after(601, states="RUNNING CONFIGURING"), ForgetReleases)
    assert not of(after(601, states="PENDING"), ForgetReleases)
    ran = job(nodes=("n1",), start_time=int(NOW) - 601)
    assert not of(decide(view(jobs=[ran], **ON_N1)), ForgetReleases)


def test_jobs_are_remembered_when_something_changed_and_forgotten_when_gone() -> None:
    running = job(nodes=("n1",))
    assert of(decide(view(jobs=[running], **ON_N1)), RememberJob) == [RememberJob(1, 0, "spot", ("n1",))]
    assert not of(decide(view(jobs=[running], seen=SEEN, **ON_N1)), RememberJob)
    again = job(nodes=("n1",), restart_count=1)
    assert of(decide(view(jobs=[again], seen=SEEN, **ON_N1)), RememberJob)
    assert of(decide(view(jobs=[], seen=SEEN)), ForgetJob) == [ForgetJob(1)]
    assert not of(decide(view(seen=SEEN, known_jobs=None)), ForgetJob)
