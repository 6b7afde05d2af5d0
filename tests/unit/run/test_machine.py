"""The wrapper's decisions, without a process, a store or a clock."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from job_wrapper.errors import ExitCode
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.desk import LATER_WAIT, QUIET_WAIT
from job_wrapper.run.machine import Machine
from job_wrapper.run.rules import STORE_PATIENCE, VERDICT_WAIT, Phase, Rules
from job_wrapper.slurm_job import JobView
from job_wrapper.store.io_types import ObjectRef

PARTS = {"rank-0": ObjectRef("c/1/main/data/e00000001/x.part", 1, "xxh3-128:" + "0" * 32)}
RUNNING = JobView("RUNNING", start_time=500.0)
PREEMPTED = JobView("RUNNING", start_time=500.0, preempt_time=1000.0, end_time=1030.0)
ENDING = JobView("COMPLETING", start_time=500.0)
REQUEUED = JobView("COMPLETING", restart_count=1)


def reclaim(now: float = 1000.0, deadline: float | None = 1120.0) -> ev.Heard:
    return ev.Heard(Notice("aws", "reclaim", "id-1", now, deadline))


class Drive:
    """Feeds a machine and keeps what it did."""

    def __init__(self, ready: bool = True, **rules: Any) -> None:
        self.machine = Machine(Rules(**rules))
        self.now = 1000.0
        self.did: list[Any] = []
        if ready:
            self(ev.Ready())
            self.did.clear()

    def __call__(self, event: ev.Event, at: float | None = None) -> list[Any]:
        self.now = at if at is not None else self.now
        actions = self.machine.on(event, self.now)
        self.did += actions
        return actions

    def wait(self, until: float) -> list[Any]:
        """Let time pass as the loop does."""
        actions = []
        for _ in range(1000):
            wake = self.machine.wake()
            if wake is None or wake > until:
                break
            actions += self(ev.Tick(), wake)
        else:
            raise AssertionError("the machine keeps waking without an end")
        self.now = until
        return actions

    def took(self, kind: type) -> list[Any]:
        return [a for a in self.did if isinstance(a, kind)]

    @property
    def code(self) -> int | None:
        exits = self.took(ev.Exit)
        return exits[0].code if exits else None


def kinds(actions: list[Any]) -> list[str]:
    return [type(a).__name__ for a in actions if not isinstance(a, ev.Say)]


def requeue_through(d: Drive) -> None:
    assert "WriteInterrupted" in kinds(d.did)
    assert kinds(d(ev.Written())) == ["QueryJob"]
    assert kinds(d(ev.JobSeen(RUNNING))) == ["Requeue"]
    d(ev.Requeued())
    assert d.code == ExitCode.REQUEUED


def test_start() -> None:
    d = Drive(ready=False)
    assert kinds(d(ev.Ready())) == ["Start"]
    assert d.machine.wake() == 1000.0 + QUIET_WAIT
    d(ev.Subscribed(1))
    assert d.machine.wake() == 1600.0


def test_refused_claim_ends_at_once() -> None:
    d = Drive(ready=False)
    d(ev.GiveUp(82, "RunHeld", "held"))
    assert d.code == 82
    assert not d.took(ev.Start)
    assert d(ev.Ready()) == []


def test_program_finishes() -> None:
    d = Drive()
    assert d(ev.Exited(0)) == [ev.WriteEnd(0, "Finished")]
    d(ev.Written())
    assert d.code == 0


@pytest.mark.parametrize(
    ("status", "oom", "code", "reason"),
    [
        (7, False, 7, "ProgramFailed"),
        (-signal.SIGSEGV, False, 139, "ProgramFailed"),
        (-signal.SIGTERM, False, 143, "ProgramFailed"),
        (-signal.SIGKILL, True, 137, "OutOfMemory"),
        (86, False, 86, "ConfigChanged"),
        (83, False, 83, "RestoreFailed"),
        (87, False, 87, "CheckpointFailed"),
    ],
)
def test_program_fails_and_is_not_brought_back(status: int, oom: bool, code: int, reason: str) -> None:
    d = Drive(state_dirs=True)
    assert d(ev.Exited(status, oom)) == [ev.WriteEnd(code, reason)]
    d(ev.Written())
    assert d.code == code


def test_program_killed_from_outside_is_brought_back() -> None:
    d = Drive()
    assert kinds(d(ev.Exited(-signal.SIGKILL))) == ["WriteInterrupted", "Stop"]
    assert d.took(ev.WriteInterrupted)[0].reason == "ProgramKilled"
    requeue_through(d)


def test_program_killed_outside_slurm_ends() -> None:
    d = Drive(in_slurm=False)
    d(ev.Exited(-signal.SIGKILL))
    d(ev.Written())
    assert d.code == 137
    assert not d.took(ev.Requeue)


def test_end_that_cannot_be_logged_does_not_hold_the_job_for_ever() -> None:
    d = Drive()
    d(ev.Exited(0))
    d.wait(1000 + STORE_PATIENCE + 1)
    assert d.code == 0


def test_end_is_put_into_the_log_when_the_store_is_back() -> None:
    d = Drive()
    d(ev.Exited(7))
    for _ in range(3):
        d(ev.Written("away", again=True))
        assert d.code is None
        assert kinds(d.wait(d.now + LATER_WAIT)) == ["WriteEnd"]
    d(ev.Written())
    assert d.code == 7


def test_program_that_waited_for_the_store_in_vain_is_brought_back() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Exited(int(ExitCode.STORE_AWAY)))
    assert not d.took(ev.WriteEnd)
    requeue_through(d)


@pytest.mark.parametrize(
    ("rules", "code"),
    [({"in_slurm": False}, ExitCode.STORE_AWAY), ({"requeue": False}, ExitCode.NOT_REQUEUEABLE)],
)
def test_where_nobody_brings_the_job_back_the_code_tells(rules: dict[str, bool], code: ExitCode) -> None:
    d = Drive(state_dirs=True, patience=30.0, **rules)
    d(ev.Exited(0))
    while not d.took(ev.WriteInterrupted):
        d(ev.CommitFailed("no answer", again=True, kind="StoreAway"))
        d.wait(d.machine.wake() or d.now)
    assert d.now <= 1000 + 30 + 1
    d.wait(d.now + 2)
    assert d.code == code
    assert not d.took(ev.WriteEnd)


def test_code_of_a_program_that_never_spoke_to_us_is_its_own() -> None:
    d = Drive()
    assert kinds(d(ev.Exited(int(ExitCode.STORE_AWAY)))) == ["WriteEnd"]


@pytest.mark.parametrize(
    ("kind", "code"), [("StoreRefused", 81), ("CheckpointTooLarge", 87), ("CheckpointFailed", 87), ("Damaged", 87)]
)
def test_last_files_that_are_refused_end_the_run_with_the_reason(kind: str, code: int) -> None:
    d = Drive(state_dirs=True)
    d(ev.Exited(0))
    assert d(ev.CommitFailed("no", again=False, kind=kind, code=code))[-1] == ev.WriteEnd(code, kind)


def test_outage_is_said_at_first_and_then_now_and_again_with_the_age_of_the_last_commit() -> None:
    d = Drive(ready=False, interval=60.0, state_dirs=True)
    d(ev.Ready(committed_at=400.0))
    said: list[str] = []
    while d.now < 1000 + 3600:
        d.did.clear()
        d.wait(d.machine.wake() or d.now)
        if d.took(ev.Save):
            failed = d(ev.CommitFailed("no answer", again=True, kind="StoreAway"))
            said += [action.text for action in failed if isinstance(action, ev.Say)]
    assert "the last commit is 11 min old" in said[0]
    assert 5 <= len(said) <= 7, said
    assert "no checkpoint for 53 min" in said[-1]
    assert "the last commit is 64 min old" in said[-1]
    while not d.took(ev.Save):
        d.wait(d.machine.wake() or d.now)
    assert "the store is back after" in d(ev.Committed(3, 0.1))[0].text
    assert d.machine.phase is Phase.RUNNING


def test_last_files_of_a_finished_program_are_committed_before_its_end() -> None:
    d = Drive(state_dirs=True)
    assert kinds(d(ev.Exited(0))) == ["Save"]
    assert kinds(d(ev.Committed(4, 0.1))) == ["WriteEnd"]
    d(ev.Written())
    assert d.code == 0


def test_program_that_finishes_without_any_file_has_finished() -> None:
    d = Drive(state_dirs=True)
    d(ev.Exited(0))
    assert d(ev.CommitFailed("no files", again=False, nothing=True, quiet=True)) == [ev.WriteEnd(0, "Finished")]


def test_files_are_never_committed_without_the_parts_that_belong_to_them() -> None:
    d = Drive(ready=False, state_dirs=True)
    d(ev.Ready(parts=True))
    assert not [a for a in d.wait(1700) if isinstance(a, ev.Save)]
    d(ev.Subscribed(1))
    d(reclaim(1700.0, 1820.0))
    assert isinstance(d(ev.Acked(1, 1))[0], ev.Answer)
    d.wait(1830)
    assert not d.took(ev.Save)
    d = Drive(ready=False, state_dirs=True)
    d(ev.Ready(parts=True))
    (save,) = d(ev.Exited(0))
    assert save.carry


def test_last_files_that_cannot_be_committed_are_no_success() -> None:
    d = Drive(state_dirs=True)
    d(ev.Exited(0))
    assert kinds(d(ev.CommitFailed("too large", again=False))) == ["WriteEnd"]
    d(ev.Written())
    assert d.code == ExitCode.CHECKPOINT_FAILED


def test_commit_in_flight_is_finished_before_the_end() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    assert kinds(d(ev.CommitAsked(1, None, 5, PARTS))) == ["Save"]
    assert d(ev.Exited(0)) == []
    assert kinds(d(ev.Committed(3, 0.1))) == ["Answer", "WriteEnd"] or kinds(d.did)[-1] == "WriteEnd"


# Ordinary checkpoints


def test_interval_asks_the_program() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    (ask,) = d.wait(1600)
    assert (ask.urgent, ask.reason) == (False, "interval")
    assert d.wait(2300) == []  # it stands: asked once
    d(ev.CommitAsked(1, ask.seq, 7, PARTS))
    d(ev.Committed(3, 1.0))
    assert d.took(ev.Answer)[0].message == {"type": "checkpoint.committed", "seq": ask.seq, "entry": 3, "stop": False}


def test_interval_saves_files_of_a_program_that_never_subscribed() -> None:
    d = Drive(state_dirs=True)
    (save,) = d.wait(1600)
    assert (save.parts, save.urgent, save.clients) == ({}, False, ())
    d(ev.Committed(2, 1.0))
    assert kinds(d.wait(2200)) == ["Save"]


def test_program_that_nothing_is_saved_of_is_told_after_some_minutes_whatever_the_interval() -> None:
    d = Drive(interval=86400.0)
    assert d.wait(1000 + QUIET_WAIT - 1) == []
    assert "nothing to save" in d.wait(1000 + QUIET_WAIT)[0].text
    assert d.wait(1000 + 3 * QUIET_WAIT) == []
    for more in ({"state_dirs": True}, {"commits": False}):
        assert Drive(interval=86400.0, **more).wait(1000 + 2 * QUIET_WAIT) == []


def test_nothing_to_save_is_said_once() -> None:
    d = Drive()
    d.wait(5000)
    assert len(d.took(ev.Say)) == 1
    assert kinds(d.did) == []


def test_files_are_saved_once_all_who_subscribed_have_acknowledged() -> None:
    d = Drive(state_dirs=True)
    d(ev.Subscribed(1))
    d(ev.Subscribed(2))
    (ask,) = d.wait(1600)
    assert d(ev.Acked(1, ask.seq)) == []
    (save,) = d(ev.Acked(2, ask.seq))
    assert save.clients == (1, 2)
    d(ev.Committed(3, 1.0))
    assert [a.client for a in d.took(ev.Answer)] == [1, 2]


def test_who_leaves_is_not_waited_for() -> None:
    d = Drive(state_dirs=True)
    d(ev.Subscribed(1))
    d(ev.Subscribed(2))
    (ask,) = d.wait(1600)
    d(ev.Acked(1, ask.seq))
    assert kinds(d(ev.Left(2))) == ["Save"]


def test_acknowledgement_without_state_directory_is_told_so() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    (ask,) = d.wait(1600)
    (answer,) = d(ev.Acked(1, ask.seq))
    assert answer.message["type"] == "checkpoint.failed"


def test_who_subscribes_late_hears_the_standing_request() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    (ask,) = d.wait(1600)
    (again,) = d(ev.Subscribed(2))
    assert (again.seq, again.client) == (ask.seq, 2)


def test_commit_is_tried_again_and_then_given_up_without_ending_anything() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.CommitAsked(1, None, 5, PARTS))
    saves = 1
    for _ in range(10):
        d(ev.CommitFailed("store away", again=True))
        saves += len([a for a in d.wait(d.now + 1.0) if isinstance(a, ev.Save)])
    assert saves == 5
    assert d.took(ev.Answer)[0].message["type"] == "checkpoint.failed"
    assert d.machine.phase is Phase.RUNNING


def test_only_rank_zero_commits() -> None:
    d = Drive(commits=False, state_dirs=True)
    d(ev.Subscribed(1))
    (answer,) = d(ev.CommitAsked(1, None, 5, PARTS))
    assert answer.message["type"] == "checkpoint.failed"
    assert kinds(d.wait(10000)) == []


# Reclaim


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
    d(ev.Written())
    d.wait(1003)
    assert d.code == ExitCode.NOT_REQUEUEABLE
    assert not d.took(ev.Requeue)


# Signals


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


# Requeue


def leaving() -> Drive:
    d = Drive()
    d(reclaim())
    d(ev.Written())
    return d


@pytest.mark.parametrize(
    "view", [REQUEUED, JobView("PENDING", 1), JobView("RUNNING", 1), JobView("COMPLETING", 0), JobView("CANCELLED", 0)]
)
def test_job_in_other_hands_is_never_touched(view: JobView) -> None:
    d = leaving()
    d(ev.JobSeen(view))
    assert not d.took(ev.Requeue)
    assert d.code is not None


def test_refused_requeue_stays_alive_and_asks_slurm_again_first() -> None:
    d = leaving()
    d(ev.JobSeen(RUNNING))
    assert kinds(d(ev.RequeueRefused("Terminated"))) == ["QueryJob"]
    d(ev.JobSeen(RUNNING))
    assert kinds(d(ev.RequeueRefused("Job is completing"))) == []
    assert d.code is None
    assert kinds(d.wait(1001)) == ["QueryJob"]
    d(ev.JobSeen(REQUEUED))
    assert d.code == ExitCode.REQUEUED
    assert len(d.took(ev.Requeue)) == 2


def test_job_that_slurm_never_requeues_lives_until_after_its_deadline() -> None:
    d = leaving()
    while d.code is None and d.now < 3000:
        d(ev.JobSeen(RUNNING))
        d(ev.RequeueRefused("Requeue disabled"))
        d.wait(d.now + 1.0)
    assert d.code == ExitCode.NOT_REQUEUEABLE
    assert d.now > 1120
    assert len([a for a in d.took(ev.Say) if "Requeue disabled" in a.text]) == 2


def test_slurmctld_that_is_away_is_asked_until_it_is_back() -> None:
    d = leaving()
    for _ in range(50):
        d(ev.JobSeen(None))
        d.wait(d.now + 1.0)
    assert d.code is None
    d(ev.JobSeen(RUNNING))
    assert len(d.took(ev.Requeue)) == 1


@pytest.mark.parametrize("when", ["starting", "running", "committing", "leaving", "finishing"])
def test_fenced_stops_at_once_and_touches_nothing(when: str) -> None:
    d = Drive(ready=when != "starting")
    if when == "committing":
        d(ev.CommitAsked(1, None, 1, PARTS))
    if when == "leaving":
        d(reclaim())
    if when == "finishing":
        d(ev.Exited(0))
    before = len(d.did)
    d(ev.IsFenced(5))
    assert kinds(d.did[before:]) == ["Stop", "Exit"]
    assert (d.took(ev.Stop)[-1].fenced, d.code) == (5, ExitCode.FENCED)
    for event in (ev.Exited(-9), reclaim(), ev.Signalled(signal.SIGTERM), ev.JobSeen(RUNNING), ev.Written()):
        assert d(event) == []


# Any order of events

_views = st.sampled_from([None, RUNNING, PREEMPTED, ENDING, REQUEUED, JobView("PENDING", 1)])
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
    st.builds(ev.Exited, st.sampled_from([0, 1, 90, -9, -11]), st.booleans()),
    st.just(ev.IsFenced(9)),
    st.builds(ev.GiveUp, st.just(83), st.just("RestoreFailed"), st.just("x"), st.booleans()),
    st.just(ev.GiveUp(90, "StoreAway", "x")),
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
)
@example(
    steps=[ev.Ready(parts=False, committed_at=None), ev.Exited(-9, False)],
    view=None,
    in_slurm=False,
    state_dirs=False,
    commits=False,
    requeue=False,
    counters=True,
)
def test_any_order_of_events_keeps_the_promises_and_comes_to_an_end(
    steps: list[Any],
    view: JobView | None,
    in_slurm: bool,
    state_dirs: bool,
    commits: bool,
    requeue: bool,
    counters: bool,
) -> None:
    rules = {"in_slurm": in_slurm, "state_dirs": state_dirs, "commits": commits, "requeue": requeue}
    d = Drive(ready=False, **rules, counters=counters and not state_dirs)
    store: list[Any] = []
    slurm: list[Any] = []
    seen_running = False
    exited = False

    def do(event: ev.Event) -> None:
        nonlocal seen_running
        if isinstance(event, ev.JobSeen):
            seen_running = event.view is not None and event.view.running and event.view.restart_count == 0
        over = d.machine.phase is Phase.OVER
        actions = d(event)
        assert not (over and actions), "nothing is done once it is over"
        for action in actions:
            if isinstance(action, ev.Save):
                assert not any(isinstance(a, ev.Save) for a in store), "one commit at a time"
                assert commits
            if isinstance(action, ev.Save | ev.WriteEnd | ev.WriteInterrupted):
                store.append(action)
            if isinstance(action, ev.WriteEnd):
                known = d.machine.desk.known or action.code != 90
                assert action.reason not in ("CheckpointFailed", "StoreAway") or not known, "an outage ends no run"
            if isinstance(action, ev.QueryJob | ev.Requeue):
                assert in_slurm
                slurm.append(action)
            if isinstance(action, ev.Requeue):
                assert isinstance(event, ev.JobSeen), "only right after Slurm has shown the job"
                assert seen_running
                assert requeue
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
        else:
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
