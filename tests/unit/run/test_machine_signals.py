"""The wrapper's decisions on signals, whose meaning only Slurm knows."""

from __future__ import annotations

import signal

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.run import events as ev
from job_wrapper.run.rules import VERDICT_WAIT, Phase
from job_wrapper.slurm_job import JobView
from tests.unit.run.drive import ENDING, PARTS, PREEMPTED, REQUEUED, RUNNING, Drive, kinds, requeue_through


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_grace_signal_of_a_preemption(number: int) -> None:
    d = Drive()
    d(ev.Subscribed(1))
    assert kinds(d(ev.Signalled(number))) == ["Ask", "QueryJob"]
    d(ev.JobSeen(PREEMPTED))
    assert d.machine.interruption is not None
    assert d.machine.interruption.deadline == 1030.0
    d(ev.CommitAsked(1, 1, 9, PARTS))
    assert kinds(d(ev.Committed(5, 0.5))) == ["Answer", "WriteInterrupted", "Stop"]
    requeue_through(d)


def test_commit_before_slurm_has_answered_waits_for_the_verdict() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Signalled(signal.SIGTERM))
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    assert not d.took(ev.Answer)
    d(ev.JobSeen(PREEMPTED))
    assert d.took(ev.Answer)[0].message["stop"] is True
    requeue_through(d)


def test_users_own_signal_only_checkpoints() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Signalled(signal.SIGUSR1))
    d(ev.JobSeen(RUNNING))
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    assert d.took(ev.Answer)[0].message["stop"] is False
    assert d.machine.interruption is None
    # The next one is a signal like the first.
    d(ev.Signalled(signal.SIGTERM))
    d(ev.JobSeen(PREEMPTED))
    d(ev.CommitAsked(1, 2, 9, PARTS))
    d(ev.Committed(6, 0.5))
    requeue_through(d)


def test_stale_preempt_time_of_an_earlier_attempt_is_no_preemption() -> None:
    d = Drive(restart_count=1)
    d(ev.Subscribed(1))
    d(ev.Signalled(signal.SIGUSR1))
    d(ev.JobSeen(JobView("RUNNING", restart_count=1, preempt_time=400.0, start_time=500.0)))
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    assert d.machine.phase is Phase.RUNNING


@pytest.mark.parametrize(("view", "code"), [(ENDING, 143), (REQUEUED, ExitCode.REQUEUED)])
def test_job_that_slurm_ends_commits_and_leaves_without_a_requeue(view: JobView, code: int) -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Signalled(signal.SIGTERM))
    d(ev.JobSeen(view))
    d(ev.CommitAsked(1, 1, 9, PARTS))
    assert kinds(d(ev.Committed(5, 0.5))) == ["Answer", "WriteInterrupted", "Stop"]
    d(ev.Written())
    d(ev.Exited(0))
    assert d.code == code
    assert not d.took(ev.Requeue)


def test_slurm_that_does_not_answer_lets_the_program_go_on_and_asks_again() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Signalled(signal.SIGTERM))
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    for _ in range(15):
        d(ev.JobSeen(None))
        d.wait(d.now + 1.0)
    assert d.now > 1000 + VERDICT_WAIT
    assert d.took(ev.Answer)[0].message["stop"] is False
    assert len(d.took(ev.QueryJob)) > 10
    d(ev.JobSeen(PREEMPTED))
    assert [a.seq for a in d.took(ev.Ask)] == [1, 2]


@pytest.mark.parametrize("status", [0, 1])
def test_exit_while_interrupted_is_not_taken_for_the_programs_own_end(status: int) -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Signalled(signal.SIGTERM))
    d(ev.Exited(status))
    assert not d.took(ev.WriteEnd)
    d(ev.JobSeen(PREEMPTED))
    requeue_through(d)


def test_failure_after_a_users_own_signal_is_a_failure() -> None:
    d = Drive()
    d(ev.Signalled(signal.SIGUSR1))
    d(ev.JobSeen(RUNNING))
    assert kinds(d(ev.Exited(1))) == ["WriteEnd"]


def test_outside_slurm_term_commits_and_ends_while_usr1_goes_on() -> None:
    d = Drive(in_slurm=False)
    d(ev.Subscribed(1))
    d(ev.Signalled(signal.SIGUSR1))
    d(ev.CommitAsked(1, 1, 9, PARTS))
    d(ev.Committed(5, 0.5))
    assert d.machine.phase is Phase.RUNNING
    d(ev.Signalled(signal.SIGTERM))
    d(ev.CommitAsked(1, 2, 9, PARTS))
    d(ev.Committed(6, 0.5))
    d(ev.Written())
    d(ev.Exited(0))
    assert d.code == 143
