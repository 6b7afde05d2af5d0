"""Reading a checkpoint, every byte verified (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

from job_wrapper.errors import Damaged
from job_wrapper.store.checkpoint_codec import decode_manifest, decode_part
from job_wrapper.store.checksum import checksum
from job_wrapper.store.io_types import Item, Manifest, ObjectRef, ObjectStore, Part, Segment

_SMALL = 1 << 20
"""Segments below this size that lie close together are fetched with one read."""
_GAP = 64 << 10
_SPAN = 8 << 20
THREADS = 4
"""Requests under way at once: two processors hash, and a bucket answers each slowly."""


@runtime_checkable
class MappingStore(ObjectStore, Protocol):
    """An ``ObjectStore`` whose bytes can be looked at where they lie."""

    def mapped(self, key: str, offset: int, length: int) -> AbstractContextManager[memoryview | None]:
        """``length`` bytes of an object from ``offset`` on, without a copy; None where that can't be done for this object."""
        ...


def _verified(store: ObjectStore, ref: ObjectRef) -> bytes:
    data = store.get(ref.key)
    where = f"{store.uri}/{ref.key}"
    if len(data) != ref.length:
        raise Damaged(f"{where}: damaged: {len(data)} bytes long, {ref.length} were written")
    if checksum(data) != ref.checksum:
        raise Damaged(f"{where}: damaged: its bytes are not those that were written (the checksum does not match)")
    return data


def read_manifest(store: ObjectStore, ref: ObjectRef) -> Manifest:
    """The manifest that ``ref`` points to. Raises ``Damaged``, ``NewerFormat``, ``ObjectMissing``, ``StoreError``."""
    return decode_manifest(_verified(store, ref), f"{store.uri}/{ref.key}")


def read_part(store: ObjectStore, ref: ObjectRef) -> Part:
    """The part that ``ref`` points to. Raises as ``read_manifest``."""
    return decode_part(_verified(store, ref), f"{store.uri}/{ref.key}")


def read_item(store: ObjectStore, item: Item) -> bytes:
    """An item's bytes. Raises ``Damaged`` naming object, item and place."""
    buffer = bytearray(item.length)
    read_item_into(store, item, memoryview(buffer))
    return bytes(buffer)


def read_item_into(store: ObjectStore, item: Item, buffer: memoryview) -> None:
    """Fill ``buffer``, which must be as long as the item. After an error its content is undefined."""
    read_items_into(store, [(item, buffer)], threads=1)


@dataclass(slots=True)
class _Read:
    """One request: ``pieces`` of the pack between ``start`` and ``end``, each with where its bytes go."""

    pack: str
    start: int
    end: int
    pieces: list[tuple[Segment, memoryview, str]] = field(default_factory=list)


def read_items_into(
    store: ObjectStore, pairs: Iterable[tuple[Item, memoryview]], threads: int = THREADS, *, verified: bool = False
) -> None:
    """Fill many buffers in parallel; small neighbours are fetched together. Raises ``Damaged`` naming object, item and place.

    ``verified``: ``verify_items`` has just passed them, so that they are most likely in the page cache. They are verified again: it may have
    let go of them, and what is read from a disk or a server a second time need not be the same.
    """
    pieces: list[tuple[Segment, memoryview, str]] = []
    for item, buffer in pairs:
        view = buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
        if len(view) != item.length:
            raise ValueError(f"item {item.name!r} has {item.length} bytes, the buffer {len(view)}")
        at = 0
        for segment in item.segments:
            pieces.append((segment, view[at : at + segment.length], item.name))
            at += segment.length
    scratch: list[bytearray] = []
    if verified and isinstance(store, MappingStore):
        _each(_plan(pieces), threads, partial(_copy, store, scratch))
    else:
        _each(_plan(pieces), threads, lambda read: _fetch(store, read, scratch))


def verify_items(store: ObjectStore, items: Iterable[Item], threads: int = THREADS) -> bool:
    """Verify items where they are stored, into no memory of the caller's. False, and nothing is known, if the store has no way to do it.

    Raises ``Damaged`` naming object, item and place.
    """
    if not isinstance(store, MappingStore):
        return False
    nowhere = memoryview(b"")
    pieces = [(segment, nowhere, item.name) for item in items for segment in item.segments]
    _each(_plan(pieces), threads, partial(_look, store))
    return True


def _look(store: MappingStore, read: _Read) -> None:
    with store.mapped(read.pack, read.start, read.end - read.start) as mapped:
        data = mapped
        if data is None:
            data = memoryview(bytearray(read.end - read.start))
            store.read_into(read.pack, read.start, data)
        for segment, _, name in read.pieces:
            at = segment.offset - read.start
            with data[at : at + segment.length] as view:
                _check(store, segment, view, name)


def _each(reads: list[_Read], threads: int, act: Callable[[_Read], None]) -> None:
    if threads <= 1 or len(reads) <= 1:
        for read in reads:
            act(read)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads, "spotburst-read") as pool:
        futures = [pool.submit(act, read) for read in reads]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _plan(pieces: list[tuple[Segment, memoryview, str]]) -> list[_Read]:
    """Requests for ``pieces``: large ones alone, small neighbours together. Pure."""
    reads: list[_Read] = []
    last: _Read | None = None
    for piece in sorted(pieces, key=lambda p: (p[0].pack, p[0].offset)):
        segment = piece[0]
        end = segment.offset + segment.length
        if segment.length >= _SMALL:
            reads.append(_Read(segment.pack, segment.offset, end, [piece]))
            continue
        if last and last.pack == segment.pack and segment.offset - last.end <= _GAP and end - last.start <= _SPAN:
            last.pieces.append(piece)
            last.end = max(last.end, end)
            continue
        last = _Read(segment.pack, segment.offset, end, [piece])
        reads.append(last)
    return reads


def _copy(store: MappingStore, scratch: list[bytearray], read: _Read) -> None:
    import ctypes  # not at the start of every wrapper

    with store.mapped(read.pack, read.start, read.end - read.start) as mapped:
        if mapped is None:
            _fetch(store, read, scratch)
            return
        source = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        for segment, view, name in read.pieces:
            # Not by assignment: that would keep the interpreter lock, and one thread at a time would copy.
            target = ctypes.addressof(ctypes.c_char.from_buffer(view))
            ctypes.memmove(target, source + segment.offset - read.start, segment.length)
            _check(store, segment, view, name)


def _fetch(store: ObjectStore, read: _Read, scratch: list[bytearray]) -> None:
    """``scratch`` holds buffers of ``_SPAN`` bytes that are free."""
    if len(read.pieces) == 1:
        segment, view, name = read.pieces[0]
        store.read_into(read.pack, read.start, view)
        _check(store, segment, view, name)
        return
    try:
        buffer = scratch.pop()
    except IndexError:
        buffer = bytearray(_SPAN)
    data = memoryview(buffer)[: read.end - read.start]
    store.read_into(read.pack, read.start, data)
    for segment, view, name in read.pieces:
        at = segment.offset - read.start
        view[:] = data[at : at + segment.length]
        _check(store, segment, view, name)
    scratch.append(buffer)


def _check(store: ObjectStore, segment: Segment, view: memoryview, name: str) -> None:
    if checksum(view) != segment.checksum:
        raise Damaged(
            f"{store.uri}/{segment.pack}: damaged: bytes {segment.offset} to {segment.offset + segment.length} (item {name!r}) "
            "are not those that were written (the checksum does not match)"
        )


def verify_checkpoint(
    store: ObjectStore, ref: ObjectRef, threads: int = THREADS, tell: Callable[[int], None] | None = None
) -> None:
    """Read everything that a manifest names, through a few buffers. Raises ``Damaged`` or ``ObjectMissing`` naming what is wrong.

    ``tell`` is told how many more bytes are verified.
    """
    manifest = read_manifest(store, ref)
    for name, part_ref in manifest.parts.items():
        part = read_part(store, part_ref)
        if part.name != name:
            raise Damaged(f"{store.uri}/{part_ref.key}: damaged: holds part {part.name!r}, not {name!r}")
        foreign = {s.pack for item in part.items for s in item.segments} - set(manifest.packs)
        if foreign:
            raise Damaged(f"{store.uri}/{ref.key}: damaged: does not name the pack {min(foreign)} of part {name!r}")
        for group in _groups(part.items):
            read_items_into(store, group, threads)
            if tell is not None:
                tell(sum(len(buffer) for _, buffer in group))


def _groups(items: Sequence[Item], size: int = 64 << 20) -> Iterable[list[tuple[Item, memoryview]]]:
    """Items cut into groups of about ``size`` bytes, large ones by segment, each with memory to read it into."""
    group: list[tuple[Item, memoryview]] = []
    total = 0
    for item in items:
        for segment in item.segments:
            group.append((Item(item.name, item.kind, (segment,)), memoryview(bytearray(segment.length))))
            total += segment.length
            if total >= size:
                yield group
                group, total = [], 0
    if group:
        yield group
