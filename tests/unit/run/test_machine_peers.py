"""Rank 0's decisions in a job of several nodes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.peers import CALL_BOUND
from job_wrapper.run.rules import NO_DEADLINE
from job_wrapper.slurm_job import SlurmJob
from tests.unit.run.drive import REQUEUED, RUNNING, Drive, kinds


def notice(source: str, deadline: float) -> Notice:
    return Notice("aws", "reclaim", source, 1000.0, deadline)


def test_a_job_that_slurm_has_requeued_for_a_lost_node_does_not_wait_for_a_save_that_never_comes() -> None:
    d = Drive(peers=True)
    d(ev.Subscribed(1))
    assert kinds(d(ev.Signalled(signal.SIGTERM))) == ["Ask", "QueryJob"]
    assert kinds(d(ev.JobSeen(REQUEUED, lost=("n2",)))) == ["WriteInterrupted", "Stop"]
    assert d.took(ev.WriteInterrupted)[0].reason == "NodeLost"
    d(ev.Written())
    d.wait(1000.0 + NO_DEADLINE / 2)
    assert d.code == ExitCode.REQUEUED


def test_a_notice_is_withdrawn_once_no_nodes_stands() -> None:
    d = Drive(peers=True)
    d(ev.Subscribed(1))
    d(ev.Heard(notice("a", 1120.0)))
    d(ev.Heard(notice("b", 1100.0), "n2"))
    assert d.machine.interruption is not None and d.machine.interruption.deadline == 1100.0
    d(ev.Withdrawn("n2"))
    assert d.machine.interruption is not None
    d(ev.Withdrawn())
    assert d.machine.interruption is None


def test_a_failure_after_all_nodes_have_answered_is_the_programs_own_for_a_while_only() -> None:
    d = Drive(peers=True)
    assert kinds(d(ev.PeerEnded(1, "n2", 1, "ProgramFailed"))) == ["CallRoll"]
    assert kinds(d(ev.RollCalled())) == ["Release"]
    assert kinds(d(ev.Exited(1), 1010.0)) == ["WriteEnd"]
    late = Drive(peers=True)
    late(ev.PeerEnded(1, "n2", 1, "ProgramFailed"))
    late(ev.RollCalled())
    assert kinds(late(ev.Exited(1), 5000.0)) == ["CallRoll"], "much may have happened since"


@pytest.mark.parametrize("code", [1, ExitCode.CHECKPOINT_FAILED, ExitCode.RESTORE_FAILED])
def test_a_save_or_a_restore_that_fails_may_have_failed_for_a_lost_node(code: int) -> None:
    for missing, ends in ((), ["WriteEnd"]), (("n2",), ["WriteInterrupted"]):
        d = Drive(peers=True)
        assert kinds(d(ev.Exited(code))) == ["CallRoll"]
        assert [k for k in kinds(d(ev.RollCalled(missing))) if k.startswith("Write")] == ends
    alone = Drive()
    assert kinds(alone(ev.Exited(code))) == ["WriteEnd"]
    own = Drive(peers=True)
    assert kinds(own(ev.Exited(ExitCode.CONFIG_CHANGED))) == ["WriteEnd"], "no other node can be to blame for that"


def test_a_notice_while_the_nodes_are_called_brings_the_job_back() -> None:
    d = Drive(peers=True)
    assert kinds(d(ev.Exited(1))) == ["CallRoll"]
    assert kinds(d(ev.Heard(notice("a", 1120.0), "n2"))) == ["WriteInterrupted", "Stop"]
    assert kinds(d(ev.RollCalled())) == []
    assert d.took(ev.WriteEnd) == []


def test_a_call_that_is_never_answered_keeps_no_failed_program() -> None:
    d = Drive(peers=True)
    assert kinds(d(ev.Exited(1))) == ["CallRoll"]
    assert kinds(d.wait(1000.0 + CALL_BOUND - 1)) == []
    assert kinds(d.wait(1000.0 + CALL_BOUND + 1)) == ["WriteEnd"]


def test_a_user_who_asks_after_a_rank_has_failed_ends_nothing() -> None:
    for asks in (ev.Asked(), ev.Signalled(signal.SIGUSR1)):
        d = Drive(peers=True)
        d(ev.Subscribed(1))
        d(ev.PeerEnded(1, "n2", 7, "ProgramFailed"))
        d(ev.RollCalled())
        d(asks)
        d(ev.JobSeen(RUNNING))
        assert d.took(ev.WriteEnd) == [] and d.took(ev.Stop) == []


def test_a_step_that_is_ended_while_the_nodes_are_called_waits_for_their_answer() -> None:
    for missing, expected in (((), ["Release", "Stop", "WriteEnd"]), (("n3",), ["WriteInterrupted", "Stop"])):
        d = Drive(peers=True)
        d(ev.PeerEnded(1, "n2", 7, "ProgramFailed"))
        d(ev.Signalled(signal.SIGTERM))
        d(ev.JobSeen(RUNNING))
        assert d.took(ev.WriteEnd) == [], "a rank may have failed because a node is lost"
        assert kinds(d(ev.RollCalled(missing))) == expected


def test_ranks_that_fail_for_one_that_ran_out_of_memory_are_told_so() -> None:
    d = Drive(peers=True)
    d(ev.PeerEnded(1, "n2", 137, "OutOfMemory"))
    d(ev.RollCalled())
    d(ev.Exited(1))
    assert [(end.code, end.reason) for end in d.took(ev.WriteEnd)] == [(1, "OutOfMemory")]


def test_nodes_that_slurm_has_lost_are_told_by_their_states(tmp_path: Path) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\nprintf 'n1 allocated\\nn2 down*\\nn3 idle~\\nn4 draining\\nn5 mixed*\\nn6 down\\n'\n")
    sinfo.chmod(0o755)
    assert SlurmJob("7", bin_dir=str(tmp_path)).lost_nodes("n[1-6]") == ("n2", "n3", "n5", "n6")
    assert SlurmJob("7", bin_dir=str(tmp_path)).lost_nodes("") == ()
    sinfo.write_text("#!/bin/sh\necho 'slurm_load_node error' >&2; exit 1\n")
    assert SlurmJob("7", bin_dir=str(tmp_path)).lost_nodes("n[1-6]") == ()
