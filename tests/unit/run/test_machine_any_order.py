"""The wrapper's decisions in any order of events."""

from __future__ import annotations

import signal
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.rules import Phase
from job_wrapper.slurm_job import JobView
from tests.unit.run.drive import ENDING, PARTS, PREEMPTED, REQUEUED, RUNNING, Drive, reclaim

_MARKED = JobView("RUNNING", start_time=500.0, held=True)
_views = st.sampled_from([None, RUNNING, PREEMPTED, ENDING, REQUEUED, JobView("PENDING", 1), _MARKED])
_events = st.one_of(
    st.just(ev.Ready()),
    st.builds(ev.Subscribed, st.integers(1, 3)),
    st.builds(ev.Left, st.integers(1, 3)),
    st.builds(ev.Acked, st.integers(1, 3), st.integers(0, 4)),
    st.builds(ev.Declined, st.integers(1, 3), st.integers(0, 4), st.just("no")),
    st.builds(ev.CommitAsked, st.integers(1, 3), st.none() | st.integers(0, 4), st.just(1), st.just(PARTS)),
    st.builds(reclaim, st.just(1000.0), st.sampled_from([None, 990.0, 1010.0, 1120.0])),
    st.just(ev.Heard(Notice("aws", "rebalance", "r", 1000.0))),
    st.just(ev.Withdrawn()),
    st.builds(ev.Signalled, st.sampled_from([signal.SIGTERM, signal.SIGUSR1])),
    st.just(ev.Asked()),
    st.builds(ev.Exited, st.sampled_from([0, 1, 90, -9, -11]), st.booleans()),
    st.just(ev.IsFenced(9)),
    st.builds(ev.GiveUp, st.just(83), st.just("RestoreFailed"), st.just("x"), st.booleans()),
    st.just(ev.GiveUp(90, "StoreAway", "x")),
    st.builds(ev.PeerEnded, st.just(1), st.just("n2"), st.just(1), st.sampled_from(["ProgramFailed", "ProgramKilled"])),
    st.builds(ev.RollCalled, st.sampled_from([(), ("n2",)])),
    st.floats(0.1, 700.0),
    st.sampled_from(["store", "slurm", "store-fails"]),
)


@settings(max_examples=500, deadline=None)
@given(
    steps=st.lists(_events, max_size=25),
    view=_views,
    in_slurm=st.booleans(),
    state_dirs=st.booleans(),
    commits=st.booleans(),
    requeue=st.booleans(),
    counters=st.booleans(),
    peers=st.booleans(),
)
@example(
    steps=[ev.Ready(parts=False, committed_at=None), ev.Exited(-9, False)],
    view=None,
    in_slurm=False,
    state_dirs=False,
    commits=False,
    requeue=False,
    counters=True,
    peers=False,
)
def test_any_order_of_events_keeps_the_promises_and_comes_to_an_end(
    steps: list[Any],
    view: JobView | None,
    in_slurm: bool,
    state_dirs: bool,
    commits: bool,
    requeue: bool,
    counters: bool,
    peers: bool,
) -> None:
    rules = {"in_slurm": in_slurm, "state_dirs": state_dirs, "commits": commits, "requeue": requeue, "peers": peers}
    calls = 0
    d = Drive(ready=False, **rules, counters=counters and not state_dirs)
    store: list[Any] = []
    slurm: list[Any] = []
    seen_running = False
    exited = False

    def do(event: ev.Event) -> None:
        nonlocal seen_running, calls
        if isinstance(event, ev.JobSeen):
            seen_running = event.view is not None and event.view.running and event.view.restart_count == 0
        over = d.machine.phase is Phase.OVER
        actions = d(event)
        assert not (over and actions), "nothing is done once it is over"
        for action in actions:
            if isinstance(action, ev.Save):
                assert not any(isinstance(a, ev.Save) for a in store), "one commit at a time"
                assert commits
            if isinstance(action, ev.Save | ev.WriteEnd | ev.WriteInterrupted | ev.WriteSuspended):
                store.append(action)
            if isinstance(action, ev.WriteEnd):
                known = d.machine.desk.known or action.code != 90
                assert action.reason not in ("CheckpointFailed", "StoreAway") or not known, "an outage ends no run"
            if isinstance(action, ev.WriteEnd) and isinstance(event, ev.RollCalled):
                assert not (event.missing and requeue), "a node that is lost ends no run"
            calls += isinstance(action, ev.CallRoll)
            if isinstance(action, ev.QueryJob | ev.Requeue):
                assert in_slurm
                slurm.append(action)
            if isinstance(action, ev.Requeue):
                assert isinstance(event, ev.JobSeen), "only right after Slurm has shown the job"
                assert seen_running
                assert requeue or action.hold, "its user's own wish is no interruption"
            if isinstance(action, ev.Answer) and action.message.get("stop"):
                assert d.machine.phase in (Phase.LEAVING, Phase.OVER)
        wake = d.machine.wake()
        assert wake is None or wake > d.now, "never wakes for what it has done already"

    def answer_store(fails: bool) -> None:
        if store:
            action = store.pop(0)
            if isinstance(action, ev.Save):
                do(ev.CommitFailed("away", again=True, kind="StoreAway") if fails else ev.Committed(7, 0.5))
            else:
                do(ev.Written("away", again=True) if fails else ev.Written())

    def answer_slurm() -> None:
        if slurm:
            do(ev.Requeued() if isinstance(slurm.pop(0), ev.Requeue) else ev.JobSeen(view))

    for step in steps:
        if isinstance(step, float):
            d.now += step
            do(ev.Tick())
        elif step in ("store", "store-fails"):
            answer_store(step == "store-fails")
        elif step == "slurm":
            answer_slurm()
        elif isinstance(step, ev.Exited):
            if not exited and d.took(ev.Start):
                exited = True
                do(step)
        elif isinstance(step, ev.Acked | ev.Declined | ev.CommitAsked | ev.Subscribed):
            if not exited and d.machine.phase is not Phase.STARTING:
                do(step)
        elif isinstance(step, ev.RollCalled):
            if calls:
                calls -= 1
                do(step)
        elif peers or not isinstance(step, ev.PeerEnded):
            do(step)
    assert len(d.took(ev.Start)) <= 1
    assert len(d.took(ev.Exit)) <= 1

    # From here on everything answers, and the node goes away: it must end in time, by a requeue if that is allowed.
    gone = Notice("aws", "reclaim", "last", d.now, d.now + 100.0)
    do(ev.Heard(gone))
    for _ in range(2000):
        if d.machine.phase is Phase.OVER:
            break
        if store:
            answer_store(fails=False)
        elif slurm:
            if view is None and isinstance(slurm[0], ev.QueryJob):
                slurm.pop(0)
                do(ev.JobSeen(RUNNING))
            else:
                answer_slurm()
        elif exited or d.now < gone.arrived + 200:
            d.now = d.machine.wake() or d.now + 1
            do(ev.Tick())
        else:
            break
    assert d.machine.phase is Phase.OVER
    if d.took(ev.WriteInterrupted) and not exited:
        assert d.now <= gone.arrived + 101
