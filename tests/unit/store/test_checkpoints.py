"""Writing and reading checkpoints: what goes in comes out, what did not change is not written again, failures are told."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from job_wrapper.errors import CheckpointFailed, StoreError, UsageError
from job_wrapper.store.io_types import ItemKind, ObjectStore, Part
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.read import read_item, read_items_into, read_part
from job_wrapper.store.write import PartWriter, find_holes, write_manifest
from tests.store.faulty import FaultyStore, MemoryStore, unavailable

DATA = "c/1/main/data/e00000001"
BLOCK = bytes(range(256)) + random.Random(0).randbytes((48 << 20) - 256)
"""No two of the first bytes are alike: items of one byte would lie together, as all of the same content do."""


def write(store: ObjectStore, items: dict[str, bytes], base: Part | None = None, **options: int) -> tuple[Part, int]:
    with PartWriter(store, DATA, "p", base=base, **options) as writer:
        for name, data in items.items():
            writer.add_bytes(name, data)
        ref = writer.finish()
    return read_part(store, ref), writer.uploaded


def content(store: ObjectStore, part: Part) -> dict[str, bytes]:
    return {item.name: read_item(store, item) for item in part.items}


sizes = st.sampled_from(
    [0, 1, 63, 64, 65, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20, 16 << 20, (16 << 20) + 1]
)


@settings(max_examples=25, deadline=None)
@given(st.lists(sizes, max_size=12), st.integers(1, 3), st.sampled_from([1, 20 << 20, 512 << 20]))
def test_what_goes_in_comes_out(lengths: list[int], threads: int, pack_size: int) -> None:
    store = MemoryStore()
    items = {f"i{n}": BLOCK[n : n + length] for n, length in enumerate(lengths)}
    part, uploaded = write(store, items, threads=threads, pack_size=pack_size)
    assert [i.name for i in part.items] == list(items)
    assert content(store, part) == items
    buffers = [(item, memoryview(bytearray(item.length))) for item in part.items]
    read_items_into(store, buffers, threads)
    assert {item.name: bytes(b) for item, b in buffers} == items
    assert sum(lengths) <= uploaded <= sum(lengths) + 4096 * (len(lengths) + 1)
    for item in part.items:
        for a in item.segments:
            assert a.length <= 16 << 20 and a.offset % (4096 if a.length >= 1 << 20 else 64) == 0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(sizes, st.sampled_from(["same", "same", "same", "changed", "gone", "new"])), max_size=10))
def test_what_did_not_change_is_not_written_again(plan: list[tuple[int, str]]) -> None:
    store = MemoryStore()
    old = {f"i{n}": BLOCK[n : n + length] for n, (length, what) in enumerate(plan) if what != "new"}
    base, _ = write(store, old)
    new = {}
    for n, (length, what) in enumerate(plan):
        if what != "gone":
            new[f"i{n}"] = BLOCK[n : n + length] if what == "same" else BLOCK[n + 100 : n + 100 + length]
    part, uploaded = write(store, new, base)
    assert content(store, part) == new
    changed = sum(length for length, what in plan if what in ("changed", "new"))
    kept = sum(length for length, what in plan if what == "same")
    assert uploaded <= changed + 4096 * (len(plan) + 1) + kept * (2 * kept < sum(map(len, old.values())))


def write_together(store: ObjectStore, items: dict[str, bytes], base: Part | None = None) -> Part:
    data, places = bytearray(), []
    for name, one in items.items():
        data += bytes(-len(data) % 64)
        places.append((name, len(data), len(one)))
        data += one
    with PartWriter(store, DATA, "p", base=base) as writer:
        writer.add_together(memoryview(data), places)
        return read_part(store, writer.finish())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 63, 4096, 256 << 10]), st.booleans()), min_size=1, max_size=16))
@example([(1, False), (1, False)])
def test_what_lies_together_is_written_with_one_write_and_told_apart_when_some_did_not_change(
    plan: list[tuple[int, bool]],
) -> None:
    store = MemoryStore()
    old = {f"i{n}": BLOCK[n : n + length] for n, (length, _) in enumerate(plan)}
    base = write_together(store, old)
    assert content(store, base) == old
    places = {item.name: item.segments for item in base.items}
    (pack,) = {segment.pack for (segment,) in places.values()}
    new = {
        name: BLOCK[100 : 100 + len(one)] if changed else one
        for (name, one), (_, changed) in zip(old.items(), plan, strict=True)
    }
    part = write_together(store, new, base)
    assert content(store, part) == new
    for item in part.items:
        assert (item.segments == places[item.name]) == (new[item.name] == old[item.name])
    if all(changed for _, changed in plan):
        assert pack not in {segment.pack for item in part.items for segment in item.segments}


def test_a_pack_that_is_mostly_dead_is_left_behind() -> None:
    """Otherwise one small item that never changes would keep a large pack for ever."""
    store = MemoryStore()
    part, _ = write(store, {"small": BLOCK[:5000], "large": BLOCK[: 3 << 20]}, threads=1)
    old = {s.pack for i in part.items for s in i.segments}
    for n in range(1, 4):
        part, _ = write(store, {"small": BLOCK[:5000], "large": BLOCK[n : n + (3 << 20)]}, part, threads=1)
    assert not old & {s.pack for i in part.items for s in i.segments}
    assert read_item(store, part.items[0]) == BLOCK[:5000]


def test_a_changed_middle_of_a_large_item_is_all_that_is_written() -> None:
    store = MemoryStore()
    base, _ = write(store, {"x": BLOCK})
    other = bytearray(BLOCK)
    other[20 << 20] ^= 1
    part, uploaded = write(store, {"x": bytes(other)}, base)
    assert uploaded == 16 << 20
    assert read_item(store, part.items[0]) == other


def test_tensors_of_any_item_size_and_attributes() -> None:
    import array

    store = MemoryStore()
    numbers = array.array("d", range(1000))
    with PartWriter(store, DATA, "p") as writer:
        writer.add_tensor("t", memoryview(numbers), dtype="float64", shape=(10, 100), device="cuda:0")
        writer.add_tensor("none", b"", dtype="float32", shape=(0, 5))
        writer.add_entry("dir", ItemKind.DIRECTORY, {"mode": 0o755})
        ref = writer.finish({"step": 7})
    part = read_part(store, ref)
    assert part.name == "p" and part.attributes["step"] == 7
    assert part.items[0].attributes == {"dtype": "float64", "shape": [10, 100], "device": "cuda:0"}
    buffer = array.array("d", bytes(8000))
    read_items_into(store, [(part.items[0], memoryview(buffer))])
    assert buffer == numbers
    assert part.items[1].segments == () and part.items[2].kind is ItemKind.DIRECTORY


def test_files_stream_in_bounded_memory_with_their_holes(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        for offset in (0, 100 << 20, 900 << 20):
            file.seek(offset)
            file.write(BLOCK)
        file.truncate(2 << 30)
    holes = find_holes(path)
    assert sum(length for _, length in holes) >= (2 << 30) - 4 * len(BLOCK)
    tracemalloc.start()
    with PartWriter(store, DATA, "p") as writer:
        writer.add_file("f", path, attributes={"mode": 0o600, "holes": holes})
        ref = writer.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 << 20
    item = read_part(store, ref).items[0]
    assert item.attributes["holes"] == holes
    assert item.length + sum(length for _, length in holes) == 2 << 30
    back = bytearray(BLOCK)
    at = 0
    whole = read_item(store, item)
    for start, end in _data_ranges(holes, 2 << 30):
        for block in (0, 100 << 20, 900 << 20):
            if start <= block < end:
                assert whole[at + block - start : at + block - start + len(back)] == back
        at += end - start


def _data_ranges(holes: list[list[int]], size: int) -> list[tuple[int, int]]:
    ranges, start = [], 0
    for offset, length in [*holes, [size, 0]]:
        if offset > start:
            ranges.append((start, offset))
        start = offset + length
    return ranges


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Content is made piece by piece and given up as soon as it is written: what waits never grows beyond its bound."""
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    tracemalloc.start()
    with PartWriter(store, DATA, "p") as writer:
        for n in range(40):
            writer.add_bytes(f"i{n}", bytes(16 << 20))
        writer.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 << 20


@pytest.mark.parametrize(
    ("fault", "at"),
    [("open_write", 1), ("open_write", 2), ("write ", 1), ("write ", 9), ("close ", 1), ("close ", 2), ("put ", 1)],
)
def test_a_failure_in_any_thread_is_raised_and_nothing_is_left(fault: str, at: int) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, at, error=unavailable, counted=lambda name: name.startswith(fault))
    items = {f"i{n}": BLOCK[: 16 << 20] for n in range(20)}
    with pytest.raises(StoreError, match="503"):
        write(store, items, threads=2)
    assert list(inner.list("")) == []


def test_giving_up_leaves_nothing(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    with PartWriter(store, DATA, "p") as writer:
        writer.add_bytes("x", BLOCK)
    writer.abort()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    with pytest.raises(StoreError, match="already finished or given up"):
        writer.finish()


def test_misuse_is_told() -> None:
    store = MemoryStore()
    with pytest.raises(UsageError, match="part name"):
        PartWriter(store, DATA, "../x")
    with PartWriter(store, DATA, "p") as writer:
        writer.add_bytes("x", b"1")
        with pytest.raises(CheckpointFailed, match="two items are named 'x'"):
            writer.add_bytes("x", b"2")
        with pytest.raises(CheckpointFailed, match="/nonexistent/file: can't be read"):
            writer.add_file("y", Path("/nonexistent/file"), attributes={})


def test_a_manifest_is_only_made_of_what_is_stored() -> None:
    store = MemoryStore()
    with PartWriter(store, DATA, "p", threads=1) as writer:
        writer.add_bytes("x", b"content")
        ref = writer.finish()
    with pytest.raises(CheckpointFailed, match="holds part 'p', but was given as 'q'"):
        write_manifest(store, "c/1/main", 1, DATA, step=1, parts={"q": ref})
    write_manifest(store, "c/1/main", 1, DATA, step=1, parts={"p": ref})
    pack = next(k for k in store.objects if k.endswith(".pack"))
    whole = store.objects[pack]
    store.objects[pack] = whole[:-1]
    with pytest.raises(CheckpointFailed, match=r"pack: the checkpoint needs 7 bytes of it, but 6 are stored"):
        write_manifest(store, "c/1/main", 1, DATA, step=1, parts={"p": ref})
    del store.objects[pack]
    with pytest.raises(CheckpointFailed, match="it is not stored"):
        write_manifest(store, "c/1/main", 1, DATA, step=1, parts={"p": ref})
