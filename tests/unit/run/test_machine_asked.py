"""A user asks for a checkpoint, or for the job to be suspended."""

from __future__ import annotations

import signal
from typing import Any

from job_wrapper.errors import ExitCode
from job_wrapper.run import events as ev
from job_wrapper.run.asked import SUSPEND_WAIT
from job_wrapper.slurm_job import JobView
from tests.unit.run.drive import ENDING, PARTS, RUNNING, Drive, kinds, reclaim

MARKED = JobView("RUNNING", start_time=500.0, held=True)


def asked(view: JobView = RUNNING, **rules: Any) -> Drive:
    """A program that has subscribed, and is asked."""
    d = Drive(**rules)
    d(ev.Subscribed(1))
    assert kinds(d(ev.Asked())) == ["Ask", "QueryJob"]
    d(ev.JobSeen(view))
    return d


def commit(d: Drive) -> list[Any]:
    request = d.took(ev.Ask)[-1]
    assert kinds(d(ev.CommitAsked(1, request.seq, 7, PARTS))) == ["Save"]
    return d(ev.Committed(3, 0.1))


def test_a_checkpoint_is_made_and_the_program_goes_on() -> None:
    d = asked()
    (answer,) = commit(d)
    assert not answer.message["stop"]
    assert d.took(ev.Save)[0].urgent
    assert d.machine.interruption is None
    assert d.took(ev.Tell) == []


def test_suspended_job_stops_at_the_commit_and_is_held() -> None:
    d = asked(MARKED)
    actions = commit(d)
    assert kinds(actions) == ["Answer", "WriteSuspended", "Stop"]
    assert actions[0].message["stop"], "the program does no step that is not in the checkpoint"
    assert kinds(d(ev.Written())) == ["QueryJob"]
    assert d(ev.JobSeen(MARKED)) == [ev.Requeue(hold=True)]
    d(ev.Requeued())
    assert d.code == ExitCode.REQUEUED


def test_a_job_that_is_resumed_before_it_has_stopped_is_not_held() -> None:
    d = asked(MARKED)
    commit(d)
    d(ev.Written())
    assert d(ev.JobSeen(RUNNING)) == [ev.Requeue()]
    assert "held" not in "".join(said.text for said in d(ev.Requeued()) if isinstance(said, ev.Say))


def test_what_slurm_says_may_come_after_the_commit() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.Asked())
    assert kinds(commit(d)) == [], "nobody is told yet"
    assert kinds(d(ev.JobSeen(MARKED))) == ["Answer", "WriteSuspended", "Stop"]


def test_a_program_that_can_not_save_is_not_suspended_and_whoever_asked_is_told_why() -> None:
    for view in (RUNNING, MARKED):
        d = asked(view)
        d(ev.Declined(1, d.took(ev.Ask)[0].seq, "out of space"))
        d.wait(d.now + 5)
        (told,) = d.took(ev.Tell)
        assert "out of space" in told.error
        assert d.machine.interruption is None
        assert d.took(ev.WriteSuspended) == []
        assert len(d.took(ev.Unhold)) == (view is MARKED), "nobody need be there to take the mark back"


def test_a_commit_that_fails_is_told_and_a_later_one_stops_nothing() -> None:
    d = asked(MARKED)
    d(ev.CommitAsked(1, d.took(ev.Ask)[0].seq, 7, PARTS))
    d(ev.CommitFailed("too large", again=False))
    assert [told.error for told in d.took(ev.Tell)] == ["too large"]
    d(ev.CommitAsked(1, None, 8, PARTS))
    assert not next(a for a in d(ev.Committed(4, 0.1)) if isinstance(a, ev.Answer)).message["stop"]


def test_a_program_that_does_not_answer_is_not_suspended() -> None:
    d = asked(MARKED)
    d.wait(d.now + SUSPEND_WAIT + 1)
    assert len(d.took(ev.Tell)) == 1
    assert d.code is None


def test_a_notice_meanwhile_counts_more() -> None:
    d = asked(MARKED)
    d(reclaim(d.now, d.now + 30))
    assert kinds(commit(d)) == ["Answer", "WriteInterrupted", "Stop"]
    d(ev.Written())
    assert d(ev.JobSeen(MARKED)) == [ev.Requeue(leaves=("",))], "the mark holds it all the same"


def test_so_does_an_end_of_slurms() -> None:
    d = asked(MARKED)
    assert kinds(d(ev.Signalled(signal.SIGTERM))) == ["QueryJob"]
    d(ev.JobSeen(ENDING))
    assert kinds(commit(d)) == ["Answer", "WriteInterrupted", "Stop"]


def test_before_the_program_has_started_there_is_nothing_to_save() -> None:
    d = Drive(ready=False)
    d(ev.Asked())
    assert "Tell" in kinds(d(ev.JobSeen(RUNNING)))
    d(ev.Asked())
    assert kinds(d(ev.JobSeen(MARKED))) == ["WriteSuspended", "Stop"]


def test_counters_that_are_no_further_than_the_last_commit_are_suspended_with_it() -> None:
    d = Drive(counters=True)
    d(ev.Asked())
    assert kinds(d(ev.JobSeen(MARKED))) == []
    d(ev.Committed(2, 0.1))
    assert d.took(ev.WriteSuspended)
    for committed in (None, 900.0):
        d = Drive(ready=False, counters=True)
        d(ev.Ready(committed_at=committed))
        d(ev.Asked())
        d(ev.JobSeen(MARKED))
        d(ev.CommitFailed("no progress since", again=False, nothing=True, quiet=True))
        assert bool(d.took(ev.WriteSuspended)) == (committed is not None)


def test_only_rank_0_answers_and_one_that_leaves_already_does_not() -> None:
    assert Drive(commits=False)(ev.Asked()) == []
    d = asked(MARKED)
    commit(d)
    assert d(ev.Asked()) == []


def test_a_job_that_slurm_would_not_bring_back_is_only_checkpointed() -> None:
    d = asked(JobView("RUNNING", start_time=500.0, held=True, requeue=False))
    assert not commit(d)[0].message["stop"]
