"""The wrapper's decisions, without a process, a store or a clock: how a program begins and ends."""

from __future__ import annotations

import signal

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.run import events as ev
from job_wrapper.run.desk import LATER_WAIT, QUIET_WAIT
from job_wrapper.run.rules import STORE_PATIENCE, Phase
from tests.unit.run.drive import PARTS, Drive, kinds, reclaim, requeue_through


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
        (137, True, 137, "OutOfMemory"),
        (1, True, 1, "OutOfMemory"),
        (-signal.SIGABRT, True, 134, "OutOfMemory"),
        (137, False, 137, "ProgramFailed"),
        (86, True, 86, "ConfigChanged"),
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
    [({"in_slurm": False}, ExitCode.STORE_AWAY), ({"requeue": False}, ExitCode.STORE_AWAY)],
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
