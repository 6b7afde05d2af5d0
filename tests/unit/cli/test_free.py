"""``checkpoints delete`` and ``prune`` on real runs in a real store. Slurm is not there: its slurm.conf is missing."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.store import RunLog
from slurm_plugin.cli.free import still_alive
from tests.fixtures.as_user import as_user
from tests.fixtures.unmet import need_root
from tests.unit.cli.conftest import START, Said, Site
from tests.unit.reconcile.views import job

Spotburst = Callable[..., Said]


def packs(site: Site, job: str = "123") -> list[Path]:
    return sorted(site.folder.glob(f"store/demo/{job}/main/data/**/*.pack"))


def test_delete_frees_a_finished_run_and_keeps_its_story(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    said = spotburst("checkpoints", "delete", "123", "--yes")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("deleted ")
    assert not packs(site)
    assert [c["state"] for c in json.loads(spotburst("checkpoints", "123", "--json").out)] == ["deleted"] * 6
    assert len(json.loads(spotburst("attempts", "123", "--json").out)) == 3
    described = spotburst("describe", "123").out
    assert "its checkpoints were deleted by hand" in described
    assert "the run has finished" in described
    again = spotburst("checkpoints", "delete", "123", "--yes")
    assert (again.code, again.out) == (0, "nothing to delete: its checkpoints are gone already\n")


def test_delete_asks_and_without_anybody_to_ask_deletes_nothing(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    said = spotburst("checkpoints", "delete", "123")
    assert said.code == ExitCode.USAGE
    assert "--yes" in said.err
    assert packs(site)


def test_delete_refuses_a_run_whose_job_may_go_on(site: Site, spotburst: Spotburst) -> None:
    claim = site.claim("9")
    site.commit(claim, 1, b"x" * 1000)
    said = spotburst("checkpoints", "delete", "9", "--yes")
    assert said.code == ExitCode.RUN_HELD
    assert "Slurm can't be asked" in said.err
    assert packs(site, "9")
    site.commit(claim, 2, b"y" * 1000)


def test_delete_refuses_another_users_run(spotburst: Spotburst, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root("to be two users")
    with tempfile.TemporaryDirectory(prefix="spotburst-test-", dir="/tmp") as folder:  # pytest's own are private
        Path(folder).chmod(0o755)
        site = Site(Path(folder))
        monkeypatch.setenv("SPOTBURST_CONFIG", f"{folder}/burst.yaml")
        site.reclaimed_twice()
        code = as_user(1002, lambda: sys.exit(spotburst("checkpoints", "delete", "123", "--yes").code))
        assert code == ExitCode.STORE_REFUSED
        assert packs(site)


def test_whether_a_run_may_still_go_on(site: Site) -> None:
    claim = site.claim("9")
    running = claim.entry
    now = running.time + 60.0
    assert "scancel 9" in (still_alive(running, job(9, "RUNNING"), None, False, now) or "")
    assert "pending" in (still_alive(running, job(9, "PENDING"), None, False, now) or "")
    assert still_alive(running, job(9, "CANCELLED"), None, False, now) is None
    assert still_alive(running, None, None, False, now) is None, "Slurm has forgotten it"
    assert "can't be asked" in (still_alive(running, None, "no answer", False, now) or "")
    elsewhere = replace(running, writer=replace(running.writer, job_id="4711-abcdef"))
    assert "outside Slurm" in (still_alive(elsewhere, None, None, False, now) or "")
    assert still_alive(elsewhere, None, None, False, now + 2 * 86400) is None
    here = replace(running, writer=replace(running.writer, job_id="local-77-1-here"))
    assert "process 77" in (still_alive(here, None, None, True, now) or "")
    assert still_alive(claim.end(1, "ProgramFailed"), job(9, "RUNNING"), "no answer", True, now) is None


def test_prune_takes_only_what_ended_long_ago(site: Site, spotburst: Spotburst) -> None:
    site.now = START - 400 * 86400.0  # by this machine's clock it is long ago
    site.reclaimed_twice("123")
    live = site.claim("124")
    site.commit(live, 1, b"x" * 1000)
    shown = json.loads(spotburst("checkpoints", "prune", "--dry-run", "--json").out)
    assert [(row["run"], row["deleted"]) for row in shown] == [("demo/123/main", False)]
    assert packs(site)
    assert spotburst("checkpoints", "prune").code == ExitCode.USAGE, "it asks"
    assert packs(site)
    said = spotburst("checkpoints", "prune", "--yes")
    assert said.code == 0
    assert "demo/123/main" in said.out
    assert not packs(site) and packs(site, "124")
    assert "no run in" in spotburst("checkpoints", "prune", "--yes").out
    assert RunLog(site.store, "demo/124/main").entries()[-1].summary.commits


@pytest.mark.parametrize("age", ["", "7w", "-1d", "soon"])
def test_an_age_that_is_none(site: Site, spotburst: Spotburst, age: str) -> None:
    said = spotburst("checkpoints", "prune", "--older-than", age)
    assert said.code == ExitCode.USAGE
    assert "--older-than" in said.err


def test_options_may_stand_before_the_job(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    assert len(json.loads(spotburst("checkpoints", "--json", "123").out)) == 6
    assert "delete" in spotburst("checkpoints", "--help").out
