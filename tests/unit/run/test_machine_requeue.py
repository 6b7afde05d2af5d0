"""The wrapper's decisions on the requeue, and on a newer attempt that fences it."""

from __future__ import annotations

import signal

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.slurm_job import JobView
from tests.unit.run.drive import PARTS, REQUEUED, RUNNING, Drive, kinds, reclaim


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


def test_a_requeue_tells_which_nodes_go_away() -> None:
    d = Drive(peers=True)
    d(reclaim())
    d(ev.Heard(Notice("aws", "reclaim", "id-2", 1000.0, 1120.0), "n2"))
    d(ev.Heard(Notice("aws", "reclaim", "id-3", 1000.0, 1120.0), "n3"))
    d(ev.Withdrawn("n3"))
    d(ev.Written())
    d(ev.JobSeen(RUNNING))
    assert d.took(ev.Requeue)[0].leaves == ("", "n2")


def test_slurms_own_preemption_takes_no_node_away() -> None:
    d = Drive()
    d(ev.Heard(Notice("slurm", "preempt", "id-1", 1000.0, 1120.0)))
    d(ev.Written())
    d(ev.JobSeen(RUNNING))
    assert d.took(ev.Requeue)[0].leaves == ()


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
