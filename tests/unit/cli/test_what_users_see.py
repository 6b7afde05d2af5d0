"""Words that tell a user what to do: each once left something out."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from job_wrapper.comments import OURS
from job_wrapper.errors import ExitCode, UsageError
from job_wrapper.reasons import said
from job_wrapper.run.rules import ENDED
from job_wrapper.store.log import RunLog
from slurm_plugin import timeline
from slurm_plugin.cli import attempts, story
from slurm_plugin.cli.describe import unknown
from slurm_plugin.cli.exits import meaning
from slurm_plugin.slurm.records import Job
from tests.unit.cli.conftest import Said, Site

Spotburst = Callable[..., Said]


def job(state: str, **more: object) -> Job:
    return Job(
        7,
        "7",
        frozenset(state.split("+")),
        reason=str(more.pop("reason", "")),
        partition="spot",
        user="a",
        user_id=1,
        **more,
    )  # type: ignore[arg-type]


def test_a_resumed_attempt_shows_at_once_which_step_it_goes_on_from(site: Site, spotburst: Spotburst) -> None:
    first = site.claim("7")
    site.commit(first, 10, b"a")
    newer = site.commit(first, 20, b"b")
    second = site.claim("7", 1, "spot-2")
    assert [a["restored_step"] for a in json.loads(spotburst("attempts", "7", "--json").out)] == [None, 20]
    second.restore_failed(newer.seq, "checksum")
    assert json.loads(spotburst("attempts", "7", "--json").out)[1]["restored_step"] == 10


def test_why_a_wrapper_gave_up_before_it_could_write_a_word(site: Site) -> None:
    words = story.outlook(job("FAILED", exit_code=int(ExitCode.NOT_REQUEUEABLE)), None, [], None)
    assert "exit code 88: NotRequeueable" in words
    assert "#SBATCH --requeue" in words
    assert all(meaning(code) for code in ExitCode if code >= ExitCode.FENCED and code is not ExitCode.REQUEUED)
    assert "exit code" not in story.outlook(job("FAILED", exit_code=1), None, [], None)
    comment = "mine | spotburst: CapacityUnavailable: no capacity for 24.0 h, the last word of o: C: words; what it has saved is kept: x"
    assert story.outlook(job("CANCELLED", comment=comment), None, [], None) == (
        "nothing by itself: the manager cancelled the job while it waited: CapacityUnavailable: no capacity for 24.0 h, "
        "the last word of o: C: words. There is no checkpoint to go on from"
    )
    assert "the manager" not in story.outlook(job("CANCELLED", comment="mine CapacityUnavailable"), None, [], None)


def test_of_a_run_that_another_job_goes_on_with_the_first_one_claims_nothing(site: Site, spotburst: Spotburst) -> None:
    first = site.claim("7", run="demo/named/main")
    site.commit(first, 10, b"a")
    first.interrupted(ENDED)
    assert json.loads(spotburst("attempts", "7", "--json").out)[0]["state"] == "ended"
    second = site.claim("8", run="demo/named/main")
    words = story.outlook(job("CANCELLED"), None, [second.entry], second.run)
    assert words == "nothing: job 8 goes on with this run (`spotburst describe 8`)"
    newest = timeline.attempts(RunLog(site.store, second.run).entries())[-1]
    for state in ("CANCELLED", "RUNNING"):
        assert attempts.as_slurm_sees(newest, job(state)).why == "running"


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_a_job_whose_wrapper_was_refused_before_its_claim_says_so(state: str) -> None:
    """Its script went on, or ended with another exit code: only the comment tells."""
    told = said("StoreRefused", int(ExitCode.STORE_REFUSED))
    words = story.outlook(job(state, comment=f"mine | {OURS}{told}; left n1 at 2026-11-30T03:05:00Z"), None, [], None)
    assert told in words
    assert "has not reached" not in words
    assert "left n1" not in words
    other = story.outlook(job(state, comment=f"mine | {OURS}n1 was lost"), None, [], None)
    assert "given up" not in other


def test_a_suspended_run_says_how_it_goes_on_and_is_no_recovery(site: Site) -> None:
    claim = site.claim("7")
    site.commit(claim, 10, b"a")
    begun = claim.entry
    entry = claim.suspended()
    assert story.outlook(job("PENDING", reason="JobHeldUser"), None, [entry], claim.run) == (
        "is suspended: `spotburst resume 7` (or scontrol release) lets it go on"
    )
    let_go = job("PENDING", reason="Priority", priority=5, restart_count=1)
    assert story.outlook(let_go, None, [entry], claim.run) == "waits behind jobs of higher priority", "by whichever way"
    again = story.outlook(job("RUNNING", priority=5, restart_count=1), None, [entry], claim.run)
    assert again == "its next attempt has begun, and has not reached `spotburst run` yet"
    running = story.outlook(job("RUNNING", reason="JobHeldUser"), None, [begun], claim.run)
    assert running != story.outlook(job("RUNNING", priority=5), None, [begun], claim.run)
    for restart in (1, 2, 3):
        claim = site.claim("7", restart)
        assert (claim.entry.summary.recoveries, claim.entry.summary.barren) == (0, 0)
        claim.suspended()


@pytest.mark.parametrize("uri", ["s3://", "s3:///", "gs://"])
def test_a_uri_without_its_bucket_is_shown_as_it_was_written(site: Site, spotburst: Spotburst, uri: str) -> None:
    said = spotburst("attempts", "7", "--uri", uri)
    assert said.code != 0
    assert f"'{uri}'" in said.err


def test_a_run_that_was_started_outside_slurm_needs_no_clusters_name(
    site: Site, spotburst: Spotburst, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = site.claim("big", run="local/big/main")
    site.commit(claim, 5, b"a")
    claim.end(1, "ProgramFailed")
    assert len(json.loads(spotburst("attempts", "big", "--json").out)) == 1, "beside a cluster of another name"
    assert spotburst("attempts", "big", "--cluster", "demo").code == 2
    monkeypatch.delenv("SPOTBURST_CONFIG")
    assert "deleted" in spotburst("checkpoints", "delete", "big", "--yes", "--uri", site.uri).out


def test_help_has_one_pair_of_brackets(spotburst: Spotburst) -> None:
    said = spotburst("store", "check", "--help").out
    assert "[URI]" in said
    assert "[[" not in said


def test_a_job_that_slurm_does_not_know_is_told_as_that() -> None:
    nowhere = UsageError("9: no run of it in file:///x/demo")
    assert str(unknown("9", None, nowhere)).startswith("Slurm does not know job 9: there is none of that number")
    away = str(unknown("9", "slurmctld does not answer", nowhere))
    assert away == "9: no run of it in file:///x/demo. Slurm can't be asked about job 9: slurmctld does not answer"
