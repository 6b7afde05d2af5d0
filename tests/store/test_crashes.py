"""A crash at every point of a save, however it is made, leaves the previous commit restorable; the next save works; what is left of the
dead attempt is collected after the next attempt's first commit (of uploads to a bucket: see ``test_unfinished_uploads``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_wrapper.errors import StoreError
from job_wrapper.store import posix
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.read import read_manifest, verify_checkpoint
from tests.store.checkpoints import QUICK, RUN, load, load_part, save, writer
from tests.store.faulty import Crash, FaultyOs, FaultyStore, MemoryStore, NoSync, unavailable
from tests.store.power import Disk
from tests.store.savers import WAYS, Saver, fresh_folders

SMALL = {"frozen": b"f" * 5000, "weight": os.urandom(3000), "empty": b""}
LATER = {**SMALL, "weight": os.urandom(3000), "moment": os.urandom(100)}

every_way = pytest.mark.parametrize("way", WAYS)
before_and_after = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return fresh_folders(tmp_path / "folders")


def _restart_and_check(way: str, store: ObjectStore, possible: set[int], folders: Iterator[Path]) -> None:
    """Another attempt claims, restores the newest commit, saves, and clears up what the dead one left."""
    saver = WAYS[way](store, 2, next(folders))
    newest = saver.claim.entry.summary.commits[-1]
    assert newest.step in possible
    saver.check(newest, next(folders))
    saver.save(9)
    saver.collect()
    needed = set()
    for commit in saver.claim.entry.summary.commits:
        verify_checkpoint(store, commit.manifest)
        manifest = read_manifest(store, commit.manifest)
        needed |= {commit.manifest.key, *manifest.packs, *(ref.key for ref in manifest.parts.values())}
    saver.check(saver.claim.entry.summary.commits[-1], next(folders))
    # What is stored is what the kept commits name, and nothing else.
    assert {info.key for info in store.list(f"{RUN}/data/")} == needed


def _second_attempt(way: str, store: ObjectStore, folder: Path, possible: set[int]) -> Saver:
    """Takes over, saves step 2, and clears up: what is to be broken off."""
    saver = WAYS[way](store, 1, folder)
    saver.save(2)
    possible.discard(1)  # the newer one is acknowledged: only it may be restored from now on
    saver.collect()
    return saver


@every_way
@before_and_after
def test_crash_at_every_store_operation(way: str, after: bool, folders: Iterator[Path]) -> None:
    points = 0
    while True:
        points += 1
        inner = MemoryStore()
        WAYS[way](inner, 0, next(folders)).save(1)
        possible = {1, 2}
        try:
            _second_attempt(way, FaultyStore(inner, points, after=after), next(folders), possible)
        except Crash:
            _restart_and_check(way, inner, possible, folders)
            continue
        break
    assert points > 15


@pytest.mark.s3
def test_crash_at_every_request_to_a_bucket(s3_uri: str, folders: Iterator[Path]) -> None:
    points = 0
    while True:
        points += 1
        inner = open_store(f"{s3_uri}/{points}", prove=False)
        WAYS["tensors"](inner, 0, next(folders)).save(1)
        possible = {1, 2}
        try:
            _second_attempt("tensors", FaultyStore(inner, points, after=points % 2 == 0), next(folders), possible)
        except Crash:
            _restart_and_check("tensors", inner, possible, folders)
            continue
        break
    assert points > 15


@pytest.mark.parametrize("way", ["tensors", "wrapped"])
def test_crash_at_every_system_call(
    way: str, tmp_path: Path, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = 0
    monkeypatch.setattr(posix, "os", NoSync())
    while True:
        points += 1
        root = tmp_path / str(points)
        root.mkdir()
        store = PosixStore(root, f"file://{root}")
        WAYS[way](store, 0, next(folders)).save(1)
        possible = {1, 2}
        monkeypatch.setattr(posix, "os", FaultyOs(points))
        try:
            _second_attempt(way, store, next(folders), possible)
            break
        except Crash:
            monkeypatch.setattr(posix, "os", NoSync())
            _restart_and_check(way, store, possible, folders)
            assert list(root.glob(f"{RUN}/data/**/*~*")) == []
        finally:
            monkeypatch.setattr(posix, "os", NoSync())
    assert points > 30


def _power_goes_at_every_call(
    way: str, tmp_path: Path, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch, ignored: str = ""
) -> int:
    """Before every call that changes something, from the first claim of all on: what was synced must do."""
    points = 0
    while True:
        points += 1
        root = tmp_path / str(points)
        root.mkdir()
        disk = Disk(root, ignored=ignored)
        disk.at = points
        monkeypatch.setattr(posix, "os", disk)
        possible: set[int] = set()
        crashed = False
        try:
            store = PosixStore(root, f"file://{root}")
            first = WAYS[way](store, 0, next(folders))
            first.save(1)
            possible = {1, 2}
            _second_attempt(way, store, next(folders), possible)
        except Crash:
            crashed = True
        finally:
            monkeypatch.setattr(posix, "os", NoSync())
        for names_kept in (False, True):
            left = tmp_path / f"{points}-left-{names_kept}"
            disk.after_the_power_went(left, names_kept=names_kept)
            store = PosixStore(left, f"file://{left}")
            if possible:
                _restart_and_check(way, store, possible, folders)
            else:  # nothing was acknowledged yet: the run can begin, or go on
                WAYS[way](store, 2, next(folders)).save(1)
        if not crashed:
            return points


def test_power_goes_at_every_system_call(
    tmp_path: Path, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _power_goes_at_every_call("files", tmp_path, folders, monkeypatch) > 60


@pytest.mark.parametrize("ignored", ["files", "folders"])
def test_a_save_that_does_not_sync_is_found_out(
    ignored: str, tmp_path: Path, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, StoreError, IndexError)):
        _power_goes_at_every_call("tensors", tmp_path, folders, monkeypatch, ignored)


@before_and_after
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
