"""One flipped bit, one lost byte, one missing object, anywhere: found, and named."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from job_wrapper.errors import Damaged, ObjectMissing, StoreError
from job_wrapper.store.io_types import ObjectRef
from job_wrapper.store.log import RunLog
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.read import read_manifest, verify_checkpoint
from tests.store.checkpoints import RUN, load_part, save, writer


@pytest.fixture
def saved(tmp_path: Path) -> tuple[PosixStore, ObjectRef]:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    claim = RunLog(store, RUN).claim(writer())
    items = {"big": os.urandom((16 << 20) + 777), "small": os.urandom(500), "tiny": b"x", "mid": os.urandom(2 << 20)}
    entry = save(claim, 1, items)
    return store, entry.summary.commits[-1].manifest


def _flip(path: Path, byte: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ (1 << bit)]))


def test_flipped_bits_in_data_are_found_and_named(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, manifest = saved
    verify_checkpoint(store, manifest)
    chance = random.Random(7)
    segments = [s for item in load_part(store, manifest).items for s in item.segments]
    assert len(segments) == 5
    for segment in segments:
        offsets = {segment.offset, segment.offset + segment.length - 1}
        offsets |= {segment.offset + chance.randrange(segment.length) for _ in range(4)}
        for byte in offsets:
            bit = chance.randrange(8)
            _flip(tmp_path / segment.pack, byte, bit)
            with pytest.raises(Damaged, match=segment.pack):
                verify_checkpoint(store, manifest)
            _flip(tmp_path / segment.pack, byte, bit)
    verify_checkpoint(store, manifest)


def test_every_flipped_bit_of_part_and_manifest_is_found_and_named(
    saved: tuple[PosixStore, ObjectRef], tmp_path: Path
) -> None:
    store, manifest = saved
    part = read_manifest(store, manifest).parts["rank-0"]
    for key in (part.key, manifest.key):
        for byte in range((tmp_path / key).stat().st_size):
            _flip(tmp_path / key, byte, byte % 8)
            with pytest.raises(Damaged, match=key):
                load_part(store, manifest)
            _flip(tmp_path / key, byte, byte % 8)
    load_part(store, manifest)


def test_every_flipped_bit_of_a_log_entry_is_found_and_named(
    saved: tuple[PosixStore, ObjectRef], tmp_path: Path
) -> None:
    store, _ = saved
    key = f"{RUN}/log/00000001.json"
    log = RunLog(store, RUN)
    for byte in range((tmp_path / key).stat().st_size):
        for bit in range(8):
            _flip(tmp_path / key, byte, bit)
            with pytest.raises(Damaged, match=key):
                log.tail()
            _flip(tmp_path / key, byte, bit)
    assert log.tail() is not None


def test_cut_off_and_missing_objects_are_named(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, manifest = saved
    part = read_manifest(store, manifest).parts["rank-0"]
    packs = {s.pack for item in load_part(store, manifest).items for s in item.segments}
    for key in (*packs, part.key, manifest.key):
        whole = (tmp_path / key).read_bytes()
        for cut in (whole[:-1], b""):
            (tmp_path / key).write_bytes(cut)
            with pytest.raises(Damaged, match=key):
                verify_checkpoint(store, manifest)
        (tmp_path / key).unlink()
        with pytest.raises(ObjectMissing, match=key):
            verify_checkpoint(store, manifest)
        (tmp_path / key).write_bytes(whole)
    verify_checkpoint(store, manifest)


def test_missing_log_entry_is_named(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, _ = saved
    (tmp_path / RUN / "log/00000000.json").unlink()
    with pytest.raises(Damaged, match=r"00000000\.json: this log entry is missing"):
        RunLog(store, RUN).entries()


def test_a_damaged_tail_stops_a_claim(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, _ = saved
    _flip(tmp_path / RUN / "log/00000001.json", 40, 1)
    with pytest.raises(StoreError, match=r"00000001\.json"):
        RunLog(store, RUN).claim(writer(1))
    assert len(list(store.list(f"{RUN}/log/"))) == 2
