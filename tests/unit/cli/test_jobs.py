"""describe, attempts, checkpoints: on real runs in a real store. Slurm is not there: its slurm.conf is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.store.retention import collect
from slurm_plugin.ledger import Ledger
from tests.unit.cli.conftest import START, Said, Site

Spotburst = Callable[..., Said]


def test_attempts_tells_each_attempt(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    said = spotburst("attempts", "123", "--json")
    assert said.code == 0
    first, second, third = json.loads(said.out)
    assert (first["epoch"], first["restart_count"], first["state"], first["node"]) == (1, 0, "requeued", "spot-1")
    assert (first["restored_step"], first["last_step"], first["commits"], first["why"]) == (None, 35, 4, "aws reclaim")
    assert (first["notice_to_commit"], first["notice_to_requeue"], first["notice_to_running"]) == (1.0, 1.5, 14.5)
    assert first["lost_steps"] == 0
    assert (second["epoch"], second["restart_count"], second["state"]) == (2, 1, "lost")
    assert (second["restored_step"], second["last_step"], second["lost_steps"]) == (35, 40, None)
    assert (third["state"], third["exit_code"], third["restored_step"], third["last_step"]) == ("finished", 0, 40, 50)
    assert all(a["offering"] == "local/local/a/small/spot" for a in (first, second, third))


def test_attempts_as_a_table(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    said = spotburst("attempts", "123")
    heading, *rows = said.out.splitlines()
    assert len(rows) == 3
    assert heading.startswith("EPOCH  JOB  RESTART  STATE")
    assert "aws reclaim" in rows[0]
    assert "1.0 s" in rows[0]
    assert "2027-01-15 08:00:40" in rows[1]
    assert "finished" in rows[2]
    assert "\x1b" not in said.out


def test_checkpoints_tells_what_is_kept(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    found = json.loads(spotburst("checkpoints", "123", "--json").out)
    assert [c["step"] for c in found] == [10, 20, 30, 35, 40, 50]
    assert [c["state"] for c in found] == ["deleted"] * 4 + ["kept"] * 2
    assert [c["size"] for c in found] == [None] * 4 + [3000, 4000]
    assert [c["uploaded"] for c in found] == [None] * 4 + [3000, 4000]
    assert found[3]["urgent"]
    assert found[0]["time"] == START + 10


def test_verify_finds_one_wrong_byte_and_says_where(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    pack = next(site.folder.glob("store/demo/123/main/data/e00000003/*.pack"))
    content = bytearray(pack.read_bytes())
    content[100] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(content)
    assert [c["state"] for c in json.loads(spotburst("checkpoints", "123", "--json").out)][-2:] == ["kept", "kept"]
    said = spotburst("checkpoints", "123", "--verify")
    assert said.code == 83
    assert [row.split()[-1] for row in said.out.splitlines()[5:7]] == ["verified", "damaged"]
    assert "entry 9" in said.out
    assert pack.name in said.out


def test_of_a_finished_run_the_final_checkpoint_alone_must_be_there(site: Site, spotburst: Spotburst) -> None:
    third = site.reclaimed_twice(keep=1)
    collect(third)
    shown = spotburst("checkpoints", "123", "--json")
    assert shown.code == 0
    assert [c["state"] for c in json.loads(shown.out)][-2:] == ["deleted", "kept"]
    site.store.delete([third.entry.summary.commits[-1].manifest.key])
    assert spotburst("checkpoints", "123").code == ExitCode.RESTORE_FAILED


def test_a_missing_manifest_is_damage_and_the_others_are_told(site: Site, spotburst: Spotburst) -> None:
    claim = site.claim("123")
    older = site.commit(claim, 10, b"x")
    site.commit(claim, 20, b"y")
    site.store.delete([older.summary.commits[-1].manifest.key])
    said = spotburst("checkpoints", "123", "--json")
    assert said.code == 83
    assert [c["state"] for c in json.loads(said.out)][-2:] == ["damaged", "kept"]


def test_a_checkpoint_that_could_not_be_restored_says_so(site: Site, spotburst: Spotburst) -> None:
    claim = site.claim("5")
    entry = site.commit(claim, 1, b"a")
    claim.restore_failed(entry.seq, "checksum")
    (found,) = json.loads(spotburst("checkpoints", "5", "--json").out)
    assert found["state"] == "kept, failed to restore 1 time"


def test_describe_tells_the_story_in_order(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    said = spotburst("describe", "123")
    assert said.code == 0
    order = [
        "attempt 1 starts on spot-1",
        "the program goes on from the start",
        "commit at step 10",
        "commit at step 30, the last of 3",
        "notice: aws reclaim, 2 min ahead",
        "urgent commit at step 35",
        "attempt 1 is interrupted: aws reclaim",
        "attempt 2 starts on spot-2",
        "the program goes on from step 35",
        "attempt 2 was lost",
        "attempt 3 starts on spot-3",
        "the run ends with exit code 0",
    ]
    places = [said.out.index(words) for words in order]
    assert places == sorted(places)
    assert "Next        nothing: the run has finished" in said.out
    assert "slurm.conf is not there" in said.out


def test_describe_tells_how_far_a_run_is_whose_program_told_its_total(site: Site, spotburst: Spotburst) -> None:
    claim = site.claim("123")
    site.commit(claim, 10, b"x")
    assert "Checkpoint  step 10, entry" in spotburst("describe", "123").out
    site.commit(claim, 20, b"y", total=50)
    assert "Checkpoint  step 20 of 50, entry" in spotburst("describe", "123").out


def test_describe_as_json(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    found = json.loads(spotburst("describe", "123", "--json").out)
    assert found["run"] == f"{site.uri}/demo/123/main"
    assert found["attempts"] == 3
    assert found["newest_commit"]["step"] == 50
    assert found["summary"]["ended"] == 0
    assert found["states"] is None
    assert "slurm.conf" in found["slurm_error"]


def test_a_run_that_failed_tells_how_to_go_on(site: Site, spotburst: Spotburst) -> None:
    claim = site.claim("7")
    site.commit(claim, 12, b"a")
    claim.end(84, "NoProgress")
    said = spotburst("describe", "7")
    assert "the run ended with NoProgress" in said.out
    assert "step 12 stands: a new job with `spotburst run --run 7 …`" in said.out


@pytest.mark.parametrize("command", ["describe", "attempts", "checkpoints"])
def test_a_job_without_a_run_is_an_error_that_says_where_it_looked(
    site: Site, spotburst: Spotburst, command: str
) -> None:
    said = spotburst(command, "999")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("spotburst: 999: no run of it in file://")
    assert said.err.count("\n") == 1


def test_a_wrapper_that_ended_before_its_claim_has_made_no_attempt(site: Site, spotburst: Spotburst) -> None:
    site.claim("70")
    shutil.rmtree(site.folder / "store/demo/70/main")  # the job's pointer is written before the claim
    said = spotburst("attempts", "70")
    assert (said.code, said.out, said.err) == (0, "no attempt yet\n", "")
    assert json.loads(spotburst("attempts", "70", "--json").out) == []


@pytest.mark.parametrize("job", ["../..", "a/b", "", "1 2", "-1x"])
def test_what_is_no_job_is_refused(site: Site, spotburst: Spotburst, job: str) -> None:
    said = spotburst("attempts", "--", job)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_array_tasks(site: Site, spotburst: Spotburst) -> None:
    site.commit(site.claim("50_1"), 1, b"a")
    site.commit(site.claim("50_2"), 2, b"a")
    assert json.loads(spotburst("attempts", "50_2", "--json").out)[0]["last_step"] == 2
    said = spotburst("attempts", "50")
    assert said.code == 2
    assert "50_1, 50_2" in said.err


def test_several_programs_of_one_job(site: Site, spotburst: Spotburst) -> None:
    site.commit(site.claim("60", name="one"), 1, b"a")
    assert json.loads(spotburst("attempts", "60", "--json").out)[0]["last_step"] == 1
    site.commit(site.claim("60", name="two"), 2, b"a")
    said = spotburst("attempts", "60")
    assert said.code == 2
    assert "--name: one, two" in said.err
    assert json.loads(spotburst("attempts", "60", "--name", "two", "--json").out)[0]["last_step"] == 2
    site.commit(site.claim("60", name="main"), 3, b"a")
    assert json.loads(spotburst("attempts", "60", "--json").out)[0]["last_step"] == 3


def test_a_run_with_a_name_is_found_by_its_name_and_by_its_job(site: Site, spotburst: Spotburst) -> None:
    site.commit(site.claim("70", run="demo/big-model/main"), 4, b"a")
    for job in ("big-model", "70"):
        assert json.loads(spotburst("attempts", job, "--json").out)[0]["last_step"] == 4


@pytest.mark.parametrize(
    ("run", "options"),
    [
        ("demo/70/main", "--run 70 "),
        ("demo/70/second", "--run 70 --name second "),
        ("demo/big-model/main", "--run big-model "),
    ],
)
def test_how_to_go_on_by_hand_names_the_run(site: Site, spotburst: Spotburst, run: str, options: str) -> None:
    claim = site.claim("70", run=run)
    site.commit(claim, 4, b"a")
    claim.end(1, "ProgramFailed")
    assert f"`spotburst run {options}…`" in spotburst("describe", "70").out


def test_a_damaged_log_is_named_not_passed_over(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    entry = site.folder / "store/demo/123/main/log/00000004.json"
    entry.chmod(0o600)
    entry.write_bytes(entry.read_bytes()[:-20])
    said = spotburst("attempts", "123")
    assert (said.code, said.out) == (83, "")
    assert "00000004.json" in said.err


def test_uri_and_cluster_override_and_nothing_is_created(
    site: Site, spotburst: Spotburst, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.reclaimed_twice()
    shutil.move(site.folder / "store", site.folder / "moved")
    said = spotburst("attempts", "123")
    assert said.code == 2
    assert "no such folder" in said.err
    assert not (site.folder / "store").exists()
    moved = f"--uri=file://{site.folder}/moved"
    assert len(json.loads(spotburst("attempts", "123", moved, "--json").out)) == 3
    assert spotburst("attempts", "123", moved, "--cluster=other").code == 2
    monkeypatch.delenv("SPOTBURST_CONFIG")
    assert "/local: it has not reached `spotburst run` yet" in spotburst("attempts", "123", moved).err
    assert len(json.loads(spotburst("attempts", "123", moved, "--cluster=demo", "--json").out)) == 3
    assert "give --uri" in spotburst("attempts", "123").err


def test_on_a_node_its_own_settings_name_the_store(
    site: Site, spotburst: Spotburst, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site.reclaimed_twice()
    monkeypatch.delenv("SPOTBURST_CONFIG")
    (tmp_path / "node.json").write_text(json.dumps({"cluster": "demo", "uri": site.uri}))
    monkeypatch.setenv("SPOTBURST_NODE_CONFIG", str(tmp_path / "node.json"))
    # Slurm's commands are there but find no slurm.conf.
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert len(json.loads(spotburst("attempts", "123", "--json").out)) == 3


def test_names_from_others_cannot_steer_the_terminal(site: Site, spotburst: Spotburst) -> None:
    site.claim("80", node="\x1b[31mred\x1b]0;title\x07")
    for command in ("attempts", "describe"):
        assert "\x1b" not in spotburst(command, "80").out


def test_describe_shows_what_the_manager_decided(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    (site.folder / "state").mkdir()
    ledger = Ledger.open(site.folder / "state" / "ledger.db", clock=lambda: START + 36.2)
    ledger.event("requeue", "spot-2 is made ready for job 123", job=123)
    ledger.event("requeue", "another job's", job=124)
    ledger.close()
    said = spotburst("describe", "123")
    assert "another job" not in said.out
    places = [
        said.out.index(w)
        for w in ("urgent commit at step 35", "manager: spot-2 is made ready", "attempt 1 is interrupted")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("process", ["local-77-1-here", "4711-abcdef"])
def test_a_run_outside_slurm_needs_no_answer_of_slurm(site: Site, spotburst: Spotburst, process: str) -> None:
    claim = site.claim(process, run="demo/mine/main")
    running = spotburst("describe", "mine").out
    assert "started outside Slurm" in running
    assert "if its process has not ended" in running
    claim.interrupted("SIGTERM")
    stopped = spotburst("describe", "mine").out
    assert "Next        nothing by itself: the same `spotburst run` again goes on from the start" in stopped
    assert "can't be asked" not in stopped
    assert json.loads(spotburst("attempts", "mine", "--json").out)[0]["state"] == "interrupted"


@pytest.mark.parametrize("command", ["describe", "cost", "report"])
def test_a_run_outside_slurm_may_have_any_number_for_its_name(command: str, site: Site, spotburst: Spotburst) -> None:
    job = "20260301123456789012345"
    (site.folder / "state").mkdir()
    Ledger.open(site.folder / "state" / "ledger.db").close()
    site.commit(site.claim(job), 1, b"x")
    said = spotburst(command, job)
    assert said.code == 0, said.err
