"""A crash at every point of a save leaves the previous commit restorable, and the next save works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from job_wrapper.errors import StoreError
from job_wrapper.store import posix
from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store
from job_wrapper.store.read import verify_checkpoint
from job_wrapper.store.retention import collect
from tests.store.checkpoints import QUICK, RUN, load, load_part, save, writer
from tests.store.faulty import Crash, FaultyOs, FaultyStore, MemoryStore, unavailable

SMALL = {"frozen": b"f" * 5000, "weight": os.urandom(3000), "empty": b""}
LATER = {**SMALL, "weight": os.urandom(3000), "moment": os.urandom(100)}
NEXT = {**LATER, "weight": os.urandom(2000)}


def _restart_and_check(
    store: MemoryStore | posix.PosixStore, restart: int, committed: dict[int, dict[str, bytes]]
) -> None:
    """Another attempt claims, restores the newest commit, saves, and clears up what the dead one left."""
    claim = RunLog(store, RUN, patience=QUICK).claim(writer(restart))
    newest = claim.entry.summary.commits[-1]
    assert newest.step in committed
    assert load(store, newest.manifest) == committed[newest.step]
    save(claim, 99, NEXT, base=load_part(store, newest.manifest))
    collect(claim, keep=1)
    for commit in claim.entry.summary.commits:
        verify_checkpoint(store, commit.manifest)
    assert load(store, claim.entry.summary.commits[-1].manifest) == NEXT
    # What is stored is what the kept commits name, and nothing else.
    needed = set()
    for commit in claim.entry.summary.commits:
        part = load_part(store, commit.manifest)
        needed |= {commit.manifest.key} | {s.pack for i in part.items for s in i.segments}
    stored = {i.key for i in store.list(f"{RUN}/data/")}
    assert needed <= stored
    assert len(stored - needed) == len(claim.entry.summary.commits)  # the part objects


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_at_every_store_operation(after: bool) -> None:
    points = 0
    while True:
        points += 1
        inner = MemoryStore()
        save(RunLog(inner, RUN).claim(writer(0)), 1, SMALL)
        store = FaultyStore(inner, points, after=after)
        committed = {1: SMALL, 2: LATER}
        try:
            claim = RunLog(store, RUN).claim(writer(1))
            base = load_part(store, claim.entry.summary.commits[-1].manifest)
            save(claim, 2, LATER, base)
            committed.pop(1)  # the newer one is acknowledged: only it may be restored from now on
            collect(claim, keep=1)
        except Crash:
            _restart_and_check(inner, 2, committed)
            continue
        assert claim.entry.summary.commits[-1].step == 2
        break
    assert points > 15


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_at_every_system_call(after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = 0
    while True:
        points += 1
        store = open_store(f"file://{tmp_path}/{points}", prove=False, create=True)
        assert isinstance(store, posix.PosixStore)
        save(RunLog(store, RUN).claim(writer(0)), 1, SMALL)
        faulty = FaultyOs(points, after=after)
        monkeypatch.setattr(posix, "os", faulty)
        committed = {1: SMALL, 2: LATER}
        try:
            claim = RunLog(store, RUN).claim(writer(1))
            base = load_part(store, claim.entry.summary.commits[-1].manifest)
            save(claim, 2, LATER, base)
            committed.pop(1)  # the newer one is acknowledged: only it may be restored from now on
            collect(claim, keep=1)
        except Crash:
            monkeypatch.setattr(posix, "os", os)
            _restart_and_check(store, 2, committed)
            assert list((tmp_path / str(points)).glob(f"{RUN}/data/**/*~*")) == []
            continue
        finally:
            monkeypatch.setattr(posix, "os", os)
        break
    assert points > 30


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_operation_raises_and_the_next_save_works(after: bool) -> None:
    points = 0
    while True:
        points += 1
        inner = MemoryStore()
        save(RunLog(inner, RUN).claim(writer(0)), 1, SMALL)
        store = FaultyStore(inner, points, after=after, error=unavailable)
        log = RunLog(store, RUN, patience=QUICK)
        failed = False
        try:
            claim = log.claim(writer(1))
        except StoreError:
            claim = log.claim(writer(1))
            failed = True
        base = load_part(inner, claim.entry.summary.commits[-1].manifest)
        before = claim.entry
        try:
            save(claim, 2, LATER, base)
        except StoreError:
            failed = True
            assert claim.entry == before
            assert load(inner, claim.entry.summary.commits[-1].manifest) == SMALL
            save(claim, 2, LATER, base)
        assert load(inner, claim.entry.summary.commits[-1].manifest) == LATER
        assert [e.kind.value for e in RunLog(inner, RUN).entries()] == ["claim", "commit", "claim", "commit"]
        if not failed and len(store.operations) < points:
            break
    assert points > 10
