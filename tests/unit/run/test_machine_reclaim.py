"""The wrapper's decisions once the cloud takes its node."""

from __future__ import annotations

import signal

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.rules import Phase
from tests.unit.run.drive import ENDING, PARTS, PREEMPTED, REQUEUED, RUNNING, Drive, kinds, reclaim, requeue_through


def test_reclaim_commit_requeue() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    ask = d.took(ev.Ask) or [a for a in d(reclaim()) if isinstance(a, ev.Ask)]
    assert (ask[0].urgent, ask[0].deadline) == (True, 1120.0)
    d(ev.CommitAsked(1, ask[0].seq, 9, PARTS), at=1001.0)
    done = d(ev.Committed(5, 0.5), at=1002.0)
    assert kinds(done) == ["Answer", "WriteInterrupted", "Stop"]
    assert done[0].message["stop"] is True
    requeue_through(d)
    assert len(d.took(ev.Requeue)) == 1


def test_second_notice_and_signals_never_requeue_twice() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(reclaim())
    d(ev.Heard(Notice("aws", "reclaim", "id-2", 1000.0, 1060.0)))
    d(ev.Signalled(signal.SIGTERM))
    assert d.machine.interruption is not None
    assert d.machine.interruption.deadline == 1060.0
    assert len(d.took(ev.Ask)) == 1
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    d(ev.Signalled(signal.SIGTERM))
    d(reclaim())
    requeue_through(d)
    d(ev.Signalled(signal.SIGTERM))
    assert len(d.took(ev.Requeue)) == 1


def test_reclaim_with_nothing_to_save_still_requeues() -> None:
    d = Drive()
    assert "WriteInterrupted" in kinds(d(reclaim()))
    requeue_through(d)


def test_reclaim_before_the_program_started() -> None:
    d = Drive(ready=False)
    d(reclaim())
    requeue_through(d)
    assert not d.took(ev.Start)


def test_ready_while_leaving_starts_nothing() -> None:
    d = Drive(ready=False)
    d(reclaim())
    d(ev.Ready())
    assert not d.took(ev.Start)


def test_program_that_never_answers_has_its_files_saved_when_time_is_short() -> None:
    d = Drive(state_dirs=True)
    d(ev.Subscribed(1))
    d(reclaim())
    assert not [a for a in d.wait(1100) if isinstance(a, ev.Save)]
    (save,) = [a for a in d.wait(1112) if isinstance(a, ev.Save)]
    assert save.urgent
    d(ev.Committed(5, 1.0))
    requeue_through(d)
    assert d.now < 1120


def test_program_that_never_answers_is_left_in_time() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(reclaim())
    d.wait(1114)
    assert not d.took(ev.WriteInterrupted)
    d.wait(1115)
    requeue_through(d)


def test_commit_that_hangs_is_left_in_time() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(reclaim())
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d.wait(1114)
    assert not d.took(ev.WriteInterrupted)
    d.wait(1115)
    requeue_through(d)


def test_older_commit_does_not_stand_for_the_urgent_one() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    (first,) = d.wait(1600)
    d(reclaim(1600.0, 1720.0))
    d(ev.CommitAsked(1, first.seq, 9, PARTS))
    d(ev.Committed(5, 0.5))
    assert d.took(ev.Answer)[-1].message["stop"] is False
    assert not d.took(ev.WriteInterrupted)
    d(ev.CommitAsked(1, first.seq + 1, 10, PARTS))
    d(ev.Committed(6, 0.5))
    assert d.took(ev.Answer)[-1].message["stop"] is True


def test_program_that_cannot_save_is_asked_again_while_there_is_time() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(reclaim())
    d(ev.Declined(1, 1, "disk full"))
    (ask,) = [a for a in d.wait(1002) if isinstance(a, ev.Ask)]
    assert (ask.seq, ask.urgent) == (2, True)
    d(ev.CommitAsked(1, 2, 9, PARTS))
    d(ev.Committed(5, 0.5))
    requeue_through(d)


def test_store_that_stays_away_does_not_keep_the_job_from_being_requeued() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(reclaim())
    d(ev.CommitAsked(1, 1, 9, PARTS))
    while d.now < 1118 and not d.took(ev.WriteInterrupted):
        d(ev.CommitFailed("store away", again=True))
        d.wait(d.now + 1.0)
    assert d.took(ev.WriteInterrupted)
    d.wait(d.now + 6)  # no Written: the store hangs
    d(ev.JobSeen(RUNNING))
    assert len(d.took(ev.Requeue)) == 1
    assert d.now < 1125


@pytest.mark.parametrize("withdrawn", [False, True])
def test_notice_while_the_last_files_are_saved_counts_once_the_store_is_away(withdrawn: bool) -> None:
    d = Drive(state_dirs=True)
    d(ev.Exited(0))
    assert d.took(ev.Save)
    d(reclaim())
    if withdrawn:
        d(ev.Withdrawn())
    assert not d.took(ev.WriteInterrupted)
    while d.now < 1118 and not d.took(ev.WriteInterrupted):
        d(ev.CommitFailed("store away", again=True))
        d.wait(d.now + 1.0)
    assert bool(d.took(ev.WriteInterrupted)) == (not withdrawn)


def test_notice_while_the_last_files_are_saved_is_none_where_that_succeeds() -> None:
    d = Drive(state_dirs=True)
    d(ev.Exited(0))
    d(reclaim())
    d(ev.Committed(5, 0.5))
    assert [e.code for e in d.took(ev.WriteEnd)] == [0]


def test_notice_withdrawn_before_the_requeue_goes_on() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(reclaim())
    d(ev.Withdrawn())
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    assert d.took(ev.Answer)[0].message["stop"] is False
    d.wait(1200)
    assert d.machine.phase is Phase.RUNNING
    assert not d.took(ev.Requeue)


def test_warning_only_asks_for_an_ordinary_checkpoint() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Heard(Notice("aws", "rebalance", "r", 1000.0)))
    assert [a.urgent for a in d.took(ev.Ask)] == [False]
    assert d.machine.interruption is None


def test_notice_whose_time_has_passed_still_gives_a_moment() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(reclaim(1000.0, 990.0))
    assert len(d.took(ev.Ask)) == 1
    assert not d.took(ev.WriteInterrupted)
    d.wait(1003)
    requeue_through(d)


def test_on_interruption_fail_commits_and_ends() -> None:
    d = Drive(requeue=False)
    d(ev.Subscribed(1))
    d(reclaim())
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    [end] = d.took(ev.WriteEnd)
    assert (end.code, end.reason, end.arrived) == (ExitCode.PREEMPTED, "Preempted", 1000.0)
    assert end.notice is not None
    d(ev.Written())
    d.wait(1003)
    assert d.code == ExitCode.PREEMPTED
    assert not d.took(ev.Requeue) + d.took(ev.WriteInterrupted)


def test_on_interruption_fail_takes_slurms_preemption_for_the_end_and_its_users_doing_not() -> None:
    for view, end, code in (
        (PREEMPTED, ["Preempted"], ExitCode.PREEMPTED),
        (REQUEUED, [], ExitCode.REQUEUED),
        (ENDING, [], 128 + signal.SIGTERM),
    ):
        d = Drive(requeue=False)
        d(ev.Signalled(signal.SIGTERM))
        d(ev.JobSeen(view))
        assert [w.reason for w in d.took(ev.WriteEnd)] == end
        d(ev.Written())
        d.wait(1003)
        assert d.code == code


def test_on_interruption_fail_of_a_program_killed_from_outside() -> None:
    d = Drive(requeue=False)
    d(ev.Exited(-signal.SIGKILL))
    assert [(w.code, w.reason) for w in d.took(ev.WriteEnd)] == [(137, "ProgramKilled")]
    d(ev.Written())
    assert d.code == 137
