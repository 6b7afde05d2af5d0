"""Which job is meant, how it stands, whether it can be asked, and what its answer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from job_wrapper.errors import CheckpointFailed, SpotburstError, UsageError
from job_wrapper.run.asked import HEARS, put_answer, read_answers
from job_wrapper.store import RunLog
from job_wrapper.store.io_types import Kind
from slurm_plugin.cli.acting import NotPossible, as_owner, find_job, over, require_running
from slurm_plugin.cli.resume import can_not_be_resumed, nothing_to_resume
from slurm_plugin.cli.source import Place
from slurm_plugin.cli.target import NoAnswer, Target, can_not_be_asked
from slurm_plugin.errors import SlurmRefused
from slurm_plugin.slurm.records import Job
from tests.unit.cli.conftest import Site


def job(state: str = "RUNNING", name: str = "12", **more: Any) -> Job:
    more = {"reason": "", "partition": "spot", "user": "ann", "user_id": 1, "priority": 5} | more
    return Job(int(name.split("_")[0]), name, frozenset(state.split("+")), **more)


JOBS = (job(name="12"), job(name="50_1"), job("PENDING", "50_[2-4,8-12:2%1]"), job("COMPLETED", "9"))


@pytest.mark.parametrize(
    ("wanted", "found"), [("12", "12"), ("50_1", "50_1"), ("50_3", "50_3"), ("50_10", "50_10"), ("9", "9")]
)
def test_a_job_as_its_user_writes_it(wanted: str, found: str) -> None:
    assert find_job(JOBS, wanted).name_id == found


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ("50", UsageError, "say which task, such as 50_1"),
        ("50_9", NotPossible, "no such job"),
        ("50_5", NotPossible, "no such job"),
        ("7", NotPossible, "no such job"),
        ("12 --all", UsageError, "is not a job id"),
        ("train", UsageError, "is not a job id"),
        ("-1", UsageError, "is not a job id"),
        ("12.0", UsageError, "12.0 is a step: name its job, 12"),
        ("50_1.batch", UsageError, "is a step: name its job, 50_1"),
        ("50_[1-3]", UsageError, "is several tasks: name one of them, such as 50_1"),
        ("50_1-3", UsageError, "is several tasks"),
        ("12,9", UsageError, "is several jobs: name one at a time, such as 12"),
        ("JobId=12", UsageError, "leave out JobId=, and write 12"),
        ("JobId=x", UsageError, "leave out JobId=$"),
        ("\u0661\u0662", UsageError, "is not a job id"),
    ],
)
def test_what_is_no_job_is_told(wanted: str, error: type[SpotburstError], words: str) -> None:
    with pytest.raises(error, match=words):
        find_job(JOBS, wanted)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (job("PENDING", reason="Priority"), r"PENDING \(Priority\)"),
        (job("COMPLETED"), "has ended"),
        (job("PENDING+COMPLETING"), "just ending"),
        (job("RUNNING+CONFIGURING"), "boot"),
        (job("SUSPENDED"), "scontrol suspend"),
    ],
)
def test_only_a_running_job_can_be_asked(shown: Job, words: str) -> None:
    with pytest.raises(NotPossible, match=words):
        require_running(shown, "x")


def test_one_that_is_requeued_is_not_over() -> None:
    assert over(job("CANCELLED"))
    assert not over(job("PENDING+SPECIAL_EXIT"))


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (job("PENDING", priority=0), None),
        (job(priority=0), None),
        (job("PENDING", reason="Resources"), "is not held, it waits"),
        (job(), "nothing to resume"),
    ],
)
def test_what_is_held_is_resumed_and_what_is_not_is_told(shown: Job, words: str | None) -> None:
    assert can_not_be_resumed(shown) is None, "resumed or released twice is no error"
    why = nothing_to_resume(shown)
    assert why is None if words is None else why is not None and words in why


@pytest.mark.parametrize(
    ("shown", "words"),
    [(job("FAILED", priority=0), "a new job goes on"), (job("SUSPENDED", priority=0), "scontrol resume")],
)
def test_what_can_not_be_resumed(shown: Job, words: str) -> None:
    assert words in (can_not_be_resumed(shown) or "")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("scancel: error: Kill job error on job id 12: Access/permission denied", "belongs to ann, not to you"),
        ("Invalid user id for job 12", "belongs to ann, not to you"),
        ("scancel: error: Kill job error on job id 12: Invalid job id specified", "has just ended"),
    ],
)
def test_refusals_of_slurms_in_plain_words(said: str, words: str) -> None:
    with pytest.raises(NotPossible, match=words), as_owner(job()):
        raise SlurmRefused(said)
    with pytest.raises(SlurmRefused), as_owner(job()):
        raise SlurmRefused("Job is disabled")


def test_why_an_attempt_can_not_be_asked(site: Site) -> None:
    claim = site.claim("12")
    old = claim.entry

    def why(shown: Job, tail: Any = old, **body: Any) -> str:
        return can_not_be_asked(shown, tail, replace(old, body=body)) or ""

    assert "too old to be asked" in why(job())
    assert why(job(), **{HEARS: 1}) == ""
    assert "keeps no checkpoints" in why(job(), continuity="ephemeral", **{HEARS: 1})
    assert "has not reached" in why(job(restart_count=1), **{HEARS: 1})
    assert "is now job 12's" in why(job(name="13"), **{HEARS: 1})
    assert "is ending already" in why(job(), claim.interrupted("aws reclaim"), **{HEARS: 1})
    assert "has ended with exit code 3" in why(job(), site.claim("12", 1).end(3, "x"), **{HEARS: 1})


class Slurm:
    shown: tuple[Job, ...] = (job(),)

    def jobs(self) -> tuple[Job, ...]:
        return self.shown


@pytest.mark.parametrize("kind", [Kind.COMMIT, Kind.SUSPENDED])
def test_the_answer_is_the_next_that_was_asked_for(site: Site, kind: Kind) -> None:
    claim, slurm = site.claim("12"), Slurm()
    before = site.commit(claim, 5, b"a", urgent=True)
    seconds = [0.0]
    happens: list[Callable[[], Any]] = []

    def sleep(wait: float) -> None:
        seconds[0] += wait
        if happens:
            happens.pop(0)()

    def target() -> Target:
        tail = RunLog(site.store, claim.run).tail()
        assert tail is not None
        return Target(job(), Place(site.store, "demo"), claim.run, tail, steady=lambda: seconds[0], sleep=sleep)

    happens += [lambda: site.commit(claim, 6, b"b"), lambda: site.commit(claim, 7, b"c", urgent=True)]
    if kind is Kind.SUSPENDED:
        happens.append(claim.suspended)
    answer = target().wait(kind, slurm, 60.0)  # type: ignore[arg-type]
    assert (answer.kind, answer.summary.commits[-1].step) == (kind, 7), "not the ordinary one before it"
    assert before.seq < answer.seq
    claim = site.claim("12", 1)
    asked = target()
    happens[:] = [lambda: put_answer(site.store, claim.run, claim.epoch, 1.0, "disk full")]
    with pytest.raises(CheckpointFailed, match=r"step 7 .*disk full"):
        asked.wait(kind, slurm, 60.0)  # type: ignore[arg-type]
    seen = replace(asked, answers=frozenset(read_answers(site.store, claim.run, claim.epoch)))
    with pytest.raises(NoAnswer, match="has not answered within 60 s"):
        seen.wait(kind, slurm, 60.0)  # type: ignore[arg-type]
    slurm.shown = (job("FAILED"),)
    with pytest.raises(NotPossible, match=r"has ended meanwhile \(FAILED\)"):
        seen.wait(kind, slurm, 60.0)  # type: ignore[arg-type]
    happens[:] = [lambda: claim.end(1, "ProgramFailed")]
    with pytest.raises(NotPossible, match="its program has ended meanwhile"):
        seen.wait(kind, slurm, 60.0)  # type: ignore[arg-type]
