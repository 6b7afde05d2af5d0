"""What is deleted, by whom, and what never is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from job_wrapper.errors import Fenced
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.log import RunLog, find_runs
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.read import verify_checkpoint
from job_wrapper.store.retention import collect
from job_wrapper.store.write import PartWriter
from tests.store.checkpoints import RUN, load, load_part, save, writer
from tests.store.faulty import MemoryStore

FROZEN = os.urandom(3 << 20)


def data(store: ObjectStore) -> set[str]:
    return {i.key for i in store.list(f"{RUN}/data/")}


def test_the_newest_commits_stay_with_all_they_need(store: ObjectStore) -> None:
    """Over several attempts, with frozen weights that only the first one stored."""
    base, step, contents = None, 0, {}
    for restart in range(3):
        claim = RunLog(store, RUN).claim(writer(restart), keep=2)
        for _ in range(3):
            step += 1
            contents[step] = {"frozen": FROZEN, "weight": os.urandom(2000)}
            entry = save(claim, step, contents[step], base)
            base = load_part(store, entry.summary.commits[-1].manifest)
            collect(claim)
            for commit in entry.summary.commits:
                verify_checkpoint(store, commit.manifest)
                assert commit.step is not None
                assert load(store, commit.manifest) == contents[commit.step]
            assert len(entry.summary.commits) == min(step, 2)
    # 2 commits of manifest, part and pack each, and the pack that the frozen weights lie in.
    assert len(data(store)) <= 2 * 4 + 2
    assert [e.seq for e in RunLog(store, RUN).entries()] == list(range(12))  # the log is never pruned


def test_a_fenced_holder_deletes_nothing() -> None:
    store = MemoryStore()
    old = RunLog(store, RUN).claim(writer(0), keep=1)
    save(old, 1, {"w": b"1"})
    save(old, 2, {"w": b"2"})
    RunLog(store, RUN).claim(writer(1))
    before = data(store)
    with pytest.raises(Fenced):
        collect(old)
    assert data(store) == before


def test_what_is_committed_while_another_thread_collects_stays() -> None:
    """Two commits come while the kept manifest is read: what the first wrote, and the second points to, was neither kept nor dropped before."""

    class Slow(MemoryStore):
        def get(self, key: str) -> bytes:
            if key == self.at:
                self.at = ""
                newest = claim.entry
                for step in (3, 4):
                    base = load_part(self, newest.summary.commits[-1].manifest)
                    newest = save(claim, step, {"frozen": b"f" * 5000, "w": bytes([step])}, base)
            return super().get(key)

        at = ""

    store = Slow()
    claim = RunLog(store, RUN).claim(writer(0), keep=1)
    save(claim, 1, {"w": b"1"})
    store.at = save(claim, 2, {"w": b"2"}).summary.commits[-1].manifest.key
    collect(claim)
    verify_checkpoint(store, claim.entry.summary.commits[-1].manifest)
    collect(claim)
    verify_checkpoint(store, claim.entry.summary.commits[-1].manifest)


def test_a_holder_fenced_while_it_deletes_harms_no_one() -> None:
    """It computed what to delete, slept, and deletes when its successor has committed already."""

    class Sleeper(MemoryStore):
        def delete(self, keys) -> None:  # type: ignore[no-untyped-def]
            doomed = list(keys)
            if doomed and not self.asleep:
                self.asleep = True
                successor = RunLog(self, RUN).claim(writer(1), keep=1)
                newest = successor.entry.summary.commits[-1].manifest
                save(successor, 9, {"frozen": FROZEN, "w": b"9"}, load_part(self, newest))
                self.successor = successor
                collect(successor)
            super().delete(doomed)

        asleep = False

    store = Sleeper()
    old = RunLog(store, RUN).claim(writer(0), keep=1)
    first = save(old, 1, {"frozen": FROZEN, "w": b"1"})
    save(old, 2, {"frozen": FROZEN, "w": b"2"}, load_part(store, first.summary.commits[-1].manifest))
    collect(old)
    assert store.asleep
    assert load(store, store.successor.entry.summary.commits[-1].manifest) == {"frozen": FROZEN, "w": b"9"}


def test_what_other_ranks_are_writing_is_left_alone() -> None:
    store = MemoryStore()
    claim = RunLog(store, RUN).claim(writer(0), keep=1)
    with PartWriter(store, claim.data_prefix, "rank-1") as other:
        other.add_bytes("x", b"next checkpoint")
        ref = other.finish()
    save(claim, 1, {"w": b"1"})
    save(claim, 2, {"w": b"2"})
    assert collect(claim) != []
    assert store.get(ref.key)


def test_leftovers_of_dead_attempts_go(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    dead = RunLog(store, RUN).claim(writer(0))
    unfinished = store.open_write(f"{dead.data_prefix}/half.pack")
    unfinished.write(b"x" * 1000)
    store.put(f"{dead.data_prefix}/whole.pack", b"never committed")
    assert len(list(tmp_path.rglob("half.pack~*"))) == 1
    claim = RunLog(store, RUN).claim(writer(1))
    save(claim, 1, {"w": b"1"})
    gone = collect(claim)
    assert f"{dead.data_prefix}/whole.pack" in gone and any("half.pack~" in key for key in gone)
    assert not (tmp_path / dead.data_prefix).exists()


def test_nothing_is_deleted_while_a_kept_manifest_is_unreadable(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    first = RunLog(store, RUN).claim(writer(0), keep=2)
    for step in range(3):
        entry = save(first, step, {"w": bytes([step])})
    (tmp_path / entry.summary.commits[0].manifest.key).write_bytes(b"{}")
    before = data(store)
    assert collect(first) == []
    assert data(store) == before
    first.restore_failed(entry.summary.commits[0].seq, "damaged")
    save(first, 3, {"w": b"3"})
    assert collect(first) != []


def test_after_the_end_only_the_final_checkpoint_stays(store: ObjectStore) -> None:
    claim = RunLog(store, RUN).claim(writer(0))
    for step in range(3):
        save(claim, step, {"w": bytes([step])})
    assert collect(claim) == []  # while it runs, all that the log names may be restored
    end = claim.end(0, "Completed", keep=1)
    assert [commit.step for commit in end.summary.commits] == [2]
    collect(claim)
    assert load(store, end.summary.commits[-1].manifest) == {"w": b"\2"}
    assert len(data(store)) == 3


def test_foreign_objects_are_left_alone() -> None:
    store = MemoryStore()
    store.put(f"{RUN}/data/notes.txt", b"mine")
    store.put("c/12/other/data/e00000001/x", b"another run's")
    claim = RunLog(store, RUN).claim(writer(0), keep=1)
    save(claim, 1, {"w": b"1"})
    save(claim, 2, {"w": b"2"})
    collect(claim)
    assert store.get(f"{RUN}/data/notes.txt") and store.get("c/12/other/data/e00000001/x")


def test_a_run_that_failed_keeps_what_it_may_be_started_again_from() -> None:
    """Its newest checkpoint may turn out damaged."""
    store = MemoryStore()
    claim = RunLog(store, RUN).claim(writer(0))
    for step in range(3):
        save(claim, step, {"w": bytes([step])})
    store.put(f"{claim.data_prefix}/never-committed.pack", b"x")
    claim.end(3, "Failed")
    assert collect(claim) == [f"{claim.data_prefix}/never-committed.pack"]
    again = RunLog(store, RUN).claim(writer(1))
    for commit in again.entry.summary.commits:
        assert load(store, commit.manifest) == {"w": bytes([commit.step or 0])}


def test_unfinished_files_go_with_the_attempt_that_left_them(tmp_path: Path) -> None:
    """At the end of the run its own, too; what others may be writing just now, only after an hour."""
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    claim = RunLog(store, RUN).claim(writer(0))
    save(claim, 1, {"w": b"1"})
    for key in (f"{claim.data_prefix}/killed-rank.pack", f"{RUN}/log/00000009.json", "c/jobs/12/main"):
        store.open_write(key).write(b"half")
    assert collect(claim) == []
    for left in tmp_path.rglob("*~*"):
        os.utime(left, (1, 1))
    collect(claim)
    assert [p.parent.name for p in tmp_path.rglob("*~*")] == ["e00000001"]
    claim.end(0, "Completed")
    collect(claim)
    assert list(tmp_path.rglob("*~*")) == []
    assert find_runs(store, "c", "12") == [RUN]


def test_a_commit_made_while_another_thread_collects_is_not_forgotten() -> None:
    class Slow(MemoryStore):
        def delete(self, keys) -> None:  # type: ignore[no-untyped-def]
            doomed = list(keys)
            if doomed and not self.busy:
                self.busy = True
                save(claim, 3, {"w": b"3"})
            super().delete(doomed)

        busy = False

    store = Slow()
    claim = RunLog(store, RUN).claim(writer(0), keep=1)
    save(claim, 1, {"w": b"1"})
    save(claim, 2, {"w": b"2"})
    collect(claim)
    assert store.busy
    collect(claim)
    assert len(data(store)) == 3
    assert load(store, claim.entry.summary.commits[-1].manifest) == {"w": b"3"}
