"""Runs that are freed: their data goes, their log keeps everyone out who came before."""

from __future__ import annotations

import pytest

from job_wrapper.errors import Fenced, RunHeld
from job_wrapper.store.claim import Claim
from job_wrapper.store.freeing import DELETED, EXPIRED, Sweep, free, is_freed, size_of
from job_wrapper.store.io_types import Entry, Kind, ObjectStore
from job_wrapper.store.log import RunFinished, RunLog
from job_wrapper.store.read import verify_checkpoint
from tests.store.checkpoints import RUN, save, writer
from tests.store.faulty import MemoryStore

DAY = 86400.0
START = 1_800_000_000.0


class Time:
    now = START

    def __call__(self) -> float:
        return self.now


def newest(store: ObjectStore, run: str = RUN) -> Entry:
    entry = RunLog(store, run).tail()
    assert entry is not None
    return entry


def finished(store: ObjectStore, time: Time, run: str = RUN, code: int = 0) -> Claim:
    claim = RunLog(store, run, clock=time).claim(writer(0))
    save(claim, 1, {"w": b"1" * 1000})
    claim.end(code, "Finished")
    return claim


def test_freed_run_has_no_data_and_keeps_its_log(store: ObjectStore) -> None:
    claim = RunLog(store, RUN).claim(writer(0))
    for step in range(3):
        save(claim, step, {"w": bytes([step]) * 1000})
    store.put(f"{RUN}/data/notes.txt", b"mine")
    before = size_of(store, RUN)
    assert free(store, RUN, newest(store), DELETED) == before - 4
    assert [info.key for info in store.list(f"{RUN}/data/")] == [f"{RUN}/data/notes.txt"], "what is not ours stays"
    kinds = [entry.kind for entry in RunLog(store, RUN).entries()]
    assert kinds == [Kind.CLAIM, Kind.COMMIT, Kind.COMMIT, Kind.COMMIT, Kind.END]
    assert is_freed(newest(store))
    assert free(store, RUN, newest(store), DELETED) == 0, "once more does no harm"
    assert len(RunLog(store, RUN).seqs()) == 5


def test_who_held_it_can_commit_nothing_more(store: ObjectStore) -> None:
    claim = RunLog(store, RUN).claim(writer(0))
    save(claim, 1, {"w": b"1"})
    free(store, RUN, newest(store), DELETED)
    with pytest.raises(Fenced):
        save(claim, 2, {"w": b"2"})
    again = RunLog(store, RUN).claim(writer(1))
    assert (again.epoch, again.entry.summary.commits) == (3, ()), "the next attempt begins anew"
    entry = save(again, 1, {"w": b"3"})
    verify_checkpoint(store, entry.summary.commits[-1].manifest)
    with pytest.raises(RunHeld, match="must not go on"):
        RunLog(store, RUN).claim(writer(0))


def test_claim_that_comes_between_keeps_everything() -> None:
    store = MemoryStore()
    first = RunLog(store, RUN).claim(writer(0))
    commit = save(first, 1, {"w": b"1"}).summary.commits[-1]
    seen = newest(store)
    RunLog(store, RUN).claim(writer(1))
    with pytest.raises(RunHeld):
        free(store, RUN, seen, DELETED)
    verify_checkpoint(store, commit.manifest)


def test_crash_before_the_data_is_gone_is_made_good() -> None:
    store, time = MemoryStore(), Time()
    finished(store, time)
    delete, store.delete = store.delete, lambda keys: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        free(store, RUN, newest(store), EXPIRED, clock=time)
    store.delete = delete  # type: ignore[method-assign]
    assert is_freed(newest(store)) and size_of(store, RUN)
    time.now += 60.0
    assert [swept.size > 0 for swept in Sweep(store, "c", clock=time).sweep()] == [True]
    assert size_of(store, RUN) == 0


def test_only_what_ended_long_ago_is_swept(store: ObjectStore) -> None:
    time = Time()
    runs = {"done": "c/12/main", "failed": "c/12/second", "runs": "c/12/third"}
    finished(store, time, runs["done"])
    finished(store, time, runs["failed"], code=7)
    live = RunLog(store, runs["runs"], clock=time).claim(writer(0))
    save(live, 1, {"w": b"1"})
    sweep = Sweep(store, "c", clock=time)
    assert list(sweep.sweep()) == []
    time.now += 6.9 * DAY
    assert list(sweep.sweep()) == []
    time.now += 0.2 * DAY
    assert sorted(swept.run for swept in sweep.sweep()) == [runs["done"], runs["failed"]]
    assert [size_of(store, run) > 0 for run in runs.values()] == [False, False, True]
    time.now += 0.1 * DAY
    assert list(sweep.sweep()) == []
    with pytest.raises(RunFinished):  # a finished run stays one: started again it exits at once
        RunLog(store, runs["done"]).claim(writer(1))
    assert RunLog(store, runs["failed"]).claim(writer(1)).entry.summary.commits == ()
    live.end(0, "Finished")
    time.now += 8 * DAY
    assert [swept.run for swept in sweep.sweep()] == [runs["runs"]], "a run that ended since the last look"


def test_a_run_that_cannot_be_read_is_left_alone() -> None:
    store, time = MemoryStore(), Time()
    finished(store, time, "c/12/main")
    finished(store, time, "c/12/second")
    log = f"c/12/main/log/{newest(store, 'c/12/main').seq:08d}.json"
    data = store.get(log)
    store.delete([log])
    store.put(log, data[:-40] + b"x" + data[-39:])
    time.now += 30 * DAY
    assert [swept.run for swept in Sweep(store, "c", clock=time).sweep()] == ["c/12/second"]
    assert size_of(store, "c/12/main") > 0


def test_a_pointer_to_another_clusters_run_frees_nothing() -> None:
    store, time = MemoryStore(), Time()
    finished(store, time, "other/12/main")
    store.put("c/jobs/12/main", store.get("other/jobs/12/main"))
    time.now += 30 * DAY
    assert list(Sweep(store, "c", clock=time).sweep()) == []
    assert size_of(store, "other/12/main") > 0
