"""Runs of jobs that never said how they ended: freed once Slurm has not shown the job for a week, and not a moment before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from job_wrapper.store import RunLog
from job_wrapper.store.freeing import KEEP_ENDED, Sweep, is_freed, size_of
from job_wrapper.store.io_types import ObjectStore, Writer
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.manager.gone import Gone
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.sweeper import Sweeper
from slurm_plugin.slurm.records import Job
from tests.store.checkpoints import save
from tests.store.faulty import MemoryStore

DAY = 86400.0


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def shown(*names: str, state: str = "RUNNING") -> tuple[Job, ...]:
    return tuple(Job(int(n.split("_")[0]), n, frozenset({state}), "", "spot", "a", 1) for n in names)


def left_open(store: ObjectStore, clock: Clock, job: str, run: str | None = None) -> str:
    """A run that has committed, and whose log says nothing of an end."""
    path = run or f"c/{job}/main"
    save(RunLog(store, path, clock=clock).claim(Writer("c", job, 0, 0, "h", job)), 1, {"w": b"1" * 1000})
    return path


def freed(store: ObjectStore, path: str) -> bool:
    tail = RunLog(store, path).tail()
    assert tail is not None
    assert is_freed(tail) == (size_of(store, path) == 0)
    return is_freed(tail)


def test_a_job_that_is_gone_for_a_week_is_freed_and_none_that_may_come_back(tmp_path: Path) -> None:
    store, clock = MemoryStore(), Clock()
    cancelled, task = left_open(store, clock, "12"), left_open(store, clock, "50_2")
    held, ended = left_open(store, clock, "13"), left_open(store, clock, "14")
    named, outside = left_open(store, clock, "15", "c/big/main"), left_open(store, clock, "local-7-8-h", "c/here/main")
    jobs = shown("13", "50_[1-9]", state="PENDING") + shown("14", state="CANCELLED")
    for day in range(20):
        # A manager that is started every day.
        gone = Gone(tmp_path / "gone.json", clock)
        gone.look(jobs if day < 10 else shown("13"))
        list(Sweep(store, "c", clock=clock, gone_since=gone.since).sweep())
        gone.save()
        assert freed(store, cancelled) == (day >= 7), day
        assert [freed(store, run) for run in (task, ended)] == [day >= 17] * 2, "what Slurm shows can be requeued"
        assert not any(freed(store, run) for run in (held, named, outside))
        clock.now += DAY


def test_a_job_that_is_shown_again_begins_its_week_anew_and_silence_of_slurm_counts_for_nothing(tmp_path: Path) -> None:
    clock = Clock()
    gone = Gone(tmp_path / "gone.json", clock)
    assert gone.since("12") is None, "before Slurm has been asked nothing is known"
    gone.look(())
    first = gone.since("12")
    assert first == clock.now
    clock.now += 6 * DAY
    gone.look(shown("12"))
    assert gone.since("12") is None
    clock.now += DAY
    gone.look(())
    assert gone.since("12") == clock.now
    (tmp_path / "gone.json").write_text('{"12": "x", "13": 9e99}')
    lost = Gone(tmp_path / "gone.json", clock)
    lost.look(())
    assert (lost.since("12"), lost.since("13")) == (clock.now, clock.now)


@pytest.mark.parametrize("answers", [True, False])
def test_the_sweeper_frees_nothing_while_slurm_does_not_answer(tmp_path: Path, answers: bool) -> None:
    store, clock = MemoryStore(), Clock()
    clock.now = time.time() - KEEP_ENDED - 60.0
    path = left_open(store, clock, "12")
    gone = Gone(tmp_path / "gone.json", clock)
    gone.look(())
    gone.since("12")
    asked: list[int] = []

    def jobs() -> tuple[Job, ...]:
        asked.append(1)
        if len(asked) > 1:
            sweeper.stop()
        if not answers:
            raise SlurmUnavailable("no answer")
        return ()

    sweeper = Sweeper("c", lambda: store, KEEP_ENDED, Once(), every=0.01, gone=gone, jobs=jobs)
    sweeper.start()
    sweeper._thread.join(60)
    assert len(asked) == 2
    assert freed(store, path) == answers


def test_many_jobs_are_written_down_at_once(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "gone.json"
    gone = Gone(path, clock)
    gone.look(())
    written = path.stat().st_ino
    for job in range(1000):
        assert gone.since(str(job)) == clock.now
    assert path.stat().st_ino == written
    gone.save()
    later = Gone(path, clock)
    later.look(())
    clock.now += DAY
    assert later.since("999") == clock.now - DAY


@pytest.mark.parametrize("text", ["[" * 20_000, '{"9": NaN}', '{"9": 1e999}', '{"9": ' + "9" * 400 + "}", '{"9": "x"}'])
def test_a_file_that_can_not_be_read_counts_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "gone.json").write_text(text)
    gone = Gone(tmp_path / "gone.json", Clock())
    gone.look(shown("7"))
    assert gone.since("9") == Clock.now
