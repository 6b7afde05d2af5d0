"""Pack writers: threads that hash segments, pass over those that the base checkpoint has already, and write the rest to large objects."""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

from xxhash import xxh3_128_hexdigest

from job_wrapper.store.checksum import PREFIX
from job_wrapper.store.io_types import ObjectStore, ObjectWriter, Part

SEGMENT = 16 << 20
"""Largest segment in bytes: small enough to be verified while still in the processor's cache's reach, and to be read in parallel."""
LARGE = 1 << 20
"""Segments from this size on are written from the caller's memory and begin at a multiple of ``ALIGNMENT``; smaller ones are gathered."""
ALIGNMENT = 4096
SMALL_ALIGNMENT = 64
_GATHER = 4 << 20
_ZEROS = bytes(ALIGNMENT)


@runtime_checkable
class HoldingWriter(Protocol):
    """An ``ObjectWriter`` that can take data without a copy and refer to it until it is closed or aborted."""

    def write_held(self, data: bytes | memoryview) -> None:
        """Append ``data``, which must not change any more."""
        ...


Place = tuple[str, int, int, str]
"""Pack key, offset, length, bare digits of the checksum."""


@dataclass(slots=True)
class Job:
    """One segment on its way: its content, and the list of places of its item in which to put where it went."""

    data: memoryview
    places: list[Place | None]
    index: int
    base: Place | None
    within: list[tuple[int, Job]] = field(default_factory=list)
    """Segments that ``data`` consists of, each with where it begins there; then the job itself has no place."""


@dataclass(slots=True)
class Work:
    """What the pack writers of one part share."""

    store: ObjectStore
    key_stem: str
    """Keys of packs are this and a number."""
    pack_size: int
    jobs: queue.SimpleQueue[list[Job] | None] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    room: threading.Condition = field(default_factory=threading.Condition)
    pending: int = 0
    """Bytes handed over and not yet written."""
    failure: BaseException | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    uploaded: int = 0
    packs: int = 0

    def next_key(self) -> str:
        """Key of a new pack."""
        with self.lock:
            self.packs += 1
            return f"{self.key_stem}-{self.packs:04d}.pack"

    def written(self, count: int) -> None:
        """Make room for ``count`` more bytes."""
        with self.room:
            self.pending -= count
            self.room.notify_all()

    def fail(self, error: BaseException) -> None:
        """Keep the first failure; whoever waits for room wakes up."""
        with self.room:
            if self.failure is None:
                self.failure = error
            self.room.notify_all()


class PackThread(threading.Thread):
    """Takes batches of segments until None comes; after a failure it only drains, so that nobody waits for it."""

    def __init__(self, work: Work) -> None:
        super().__init__(name="spotburst-pack", daemon=True)
        self._work = work
        self._writer: ObjectWriter | None = None
        self._key = ""
        self._offset = 0
        self._buffer: mmap.mmap | None = None
        """Begins at a page, as direct writes must."""
        self._used = 0

    def run(self) -> None:
        """The thread's life."""
        while (batch := self._work.jobs.get()) is not None:
            self._guarded(partial(self._take, batch))
            self._work.written(sum(len(job.data) for job in batch))
            del batch  # what it refers to may be given back to the system while this thread waits
        self._guarded(self._close)
        if self._writer is not None:
            try:
                self._writer.abort()
            except BaseException as error:  # one failure is known already; this thread must end all the same
                self._work.fail(error)

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._work.failure is None:
            try:
                act()
            except BaseException as error:
                self._work.fail(error)

    def _take(self, batch: list[Job]) -> None:
        for job in batch:
            if job.within:
                self._take_together(job)
            else:
                digest = xxh3_128_hexdigest(job.data)
                if not _is_in_base(job, digest):
                    self._take_one(job, digest)

    def _take_one(self, job: Job, digest: str) -> None:
        length = len(job.data)
        writer = self._writer_for(length)
        if length >= LARGE:
            offset = self._append_large(writer, job.data)
        else:
            offset = self._append_small(writer, job.data, length)
        job.places[job.index] = (self._key, offset, length, digest)

    def _take_together(self, whole: Job) -> None:
        """With one write and without a copy, unless some of it need not be written."""
        digests = [xxh3_128_hexdigest(job.data) for _, job in whole.within]
        new = [(at, job, d) for (at, job), d in zip(whole.within, digests, strict=True) if not _is_in_base(job, d)]
        if len(new) < len(whole.within) or len(whole.data) < LARGE:
            for _, job, digest in new:
                self._take_one(job, digest)
            return
        offset = self._append_large(self._writer_for(len(whole.data)), whole.data)
        for at, job, digest in new:
            job.places[job.index] = (self._key, offset + at, len(job.data), digest)

    def _writer_for(self, length: int) -> ObjectWriter:
        """Of a pack that has room for so much."""
        writer = self._writer
        if writer is None or self._offset + length > self._work.pack_size:
            self._close()
            self._key = self._work.next_key()
            writer = self._writer = self._work.store.open_write(self._key)
        return writer

    def _append_large(self, writer: ObjectWriter, data: memoryview) -> int:
        padding = -self._offset % ALIGNMENT
        if padding:
            self._append_small(writer, memoryview(_ZEROS)[:padding], padding, alignment=1)
        self._flush(writer)
        offset = self._offset
        if isinstance(writer, HoldingWriter):
            writer.write_held(data)
        else:
            writer.write(data)
        self._offset += len(data)
        return offset

    def _append_small(
        self, writer: ObjectWriter, data: memoryview, length: int, alignment: int = SMALL_ALIGNMENT
    ) -> int:
        padding = -self._offset % alignment
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = mmap.mmap(-1, _GATHER)
        elif self._used + padding + length > _GATHER:
            # Whole pages only, so that what follows in the file begins at a page again.
            self._flush(writer, self._used // ALIGNMENT * ALIGNMENT)
        used = self._used
        if padding:
            buffer[used : used + padding] = _ZEROS[:padding]
            used += padding
        buffer[used : used + length] = data
        self._used = used + length
        offset = self._offset + padding
        self._offset = offset + length
        return offset

    def _flush(self, writer: ObjectWriter, count: int | None = None) -> None:
        """Write the first ``count`` gathered bytes, or all of them."""
        buffer = self._buffer
        count = self._used if count is None else count
        if buffer is not None and count:
            with memoryview(buffer) as view, view[:count] as head:
                writer.write(head)
            rest = self._used - count
            buffer[:rest] = buffer[count : self._used]
            self._used = rest

    def _close(self) -> None:
        if self._writer is None:
            return
        self._flush(self._writer)
        self._writer.close()
        self._writer = None
        with self._work.lock:
            self._work.sizes[self._key] = self._offset
            self._work.uploaded += self._offset
        self._offset = 0


def _is_in_base(job: Job, digest: str) -> bool:
    """Whether the base has this segment; its place is then that of the base."""
    base = job.base
    if base is None or base[3] != digest or base[2] != len(job.data):
        return False
    job.places[job.index] = base
    return True


def reusable(base: Part, sizes: Mapping[str, int]) -> dict[str, list[Place]]:
    """Places of the base's segments, by item, as far as they may be pointed to again.

    A pack of which the base uses less than half is not: its live segments are written anew, so that a store never keeps more than
    about twice the bytes that its checkpoints name. What lies between two segments is used, too: written anew it would be there again.
    """
    used: dict[str, int] = {}
    for item in base.items:
        for segment in item.segments:
            length = -(-segment.length // SMALL_ALIGNMENT) * SMALL_ALIGNMENT
            used[segment.pack] = used.get(segment.pack, 0) + length
    good = {pack for pack, count in used.items() if 2 * count >= sizes.get(pack, 0)}
    return {
        item.name: [
            (s.pack, s.offset, s.length, s.checksum[len(PREFIX) :]) if s.pack in good else ("", 0, -1, "")
            for s in item.segments
        ]
        for item in base.items
        if item.segments
    }
