"""Ended jobs' logs, read from a real store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from job_wrapper.errors import StoreError
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Kind, ObjectStore, Writer
from slurm_plugin.manager.runs import RunReader
from slurm_plugin.manager.say import Once
from tests.unit.manager.test_reach import until
from tests.unit.reconcile.views import job

ENDED = job(12, "FAILED", end_time=1000)


def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}", prove=False)


def claim(tmp_path: Path, job_id: str, run: str) -> None:
    RunLog(store(tmp_path), run).claim(Writer("c", job_id, 0, 0, "h", "nonce"))


def test_all_runs_of_a_job_and_those_of_its_array_name(tmp_path: Path) -> None:
    claim(tmp_path, "12", "c/12/main")
    claim(tmp_path, "12", "c/long-lived/main")
    claim(tmp_path, "7_3", "c/7_3/main")
    claim(tmp_path, "13", "c/13/main")
    reader = RunReader("c", lambda: store(tmp_path), Once())
    tails = reader.read(replace(ENDED, name_id="7_3"))
    assert {(t.run, t.kind, t.job_id) for t in tails} == {
        ("c/12/main", Kind.CLAIM, "12"),
        ("c/long-lived/main", Kind.CLAIM, "12"),
        ("c/7_3/main", Kind.CLAIM, "7_3"),
    }
    assert reader.read(job(99, "FAILED")) == ()


def test_a_damaged_newest_entry_leaves_that_run_out(tmp_path: Path) -> None:
    claim(tmp_path, "12", "c/12/main")
    claim(tmp_path, "12", "c/12/other")
    (tmp_path / "c/12/main/log/00000000.json").write_bytes(b"{}")
    tails = RunReader("c", lambda: store(tmp_path), Once()).read(ENDED)
    assert [t.run for t in tails] == ["c/12/other"]


def test_read_in_the_background_once_and_again_after_a_fault(tmp_path: Path) -> None:
    claim(tmp_path, "12", "c/12/main")
    opened: list[int] = []

    def flaky() -> ObjectStore:
        opened.append(1)
        if len(opened) <= 2:  # at the start, and for the job
            raise StoreError("the store does not answer")
        return store(tmp_path)

    woken: list[int] = []
    reader = RunReader("c", flaky, Once(), wake=lambda: woken.append(1))
    reader.start()
    reader.look_up([ENDED])
    until(lambda: bool(reader._not_before))
    assert reader.found() == {}, "unknown is not 'no run'"
    reader._not_before.clear()
    reader.look_up([ENDED])
    until(lambda: bool(woken))
    assert [t.run for t in reader.found()[12]] == ["c/12/main"]
    assert woken == [1]
    reader.look_up([])
    assert reader.found() == {}
    reader.stop()


def test_a_job_whose_runs_cannot_be_read_does_not_hold_up_the_others(tmp_path: Path) -> None:
    claim(tmp_path, "12", "c/12/main")
    claim(tmp_path, "13", "c/13/main")
    (tmp_path / "c/jobs/12/main").write_bytes(b"not ours")
    reader = RunReader("c", lambda: store(tmp_path), Once())
    reader.start()
    reader.look_up([ENDED, job(13, "FAILED", end_time=1000)])
    until(lambda: bool(reader.found()))
    reader.stop()
    assert {number: [t.run for t in tails] for number, tails in reader.found().items()} == {13: ["c/13/main"]}


def test_what_was_read_while_a_job_ran_is_not_its_last_word(tmp_path: Path) -> None:
    claim(tmp_path, "12", "c/12/main")
    running = job(12, "RUNNING", end_time=1000)  # as Slurm told that it would
    reader = RunReader("c", lambda: store(tmp_path), Once())
    reader.look_up([running])
    reader.start()
    until(lambda: bool(reader.found()))
    reader.look_up([running])
    assert reader.found()
    (tmp_path / "c/jobs/12/main").write_bytes(b"not ours")
    reader.look_up([ENDED])
    assert reader.found() == {}
    reader.stop()


def test_jobs_that_have_ended_come_before_those_that_run(tmp_path: Path) -> None:
    reader = RunReader("c", lambda: store(tmp_path), Once())
    reader.look_up([*(job(number, "RUNNING") for number in range(20, 30)), ENDED])
    due = reader._due()
    assert due is not None
    assert due[1] == ENDED
