"""Writing a checkpoint: items into packs, packs into a part, parts into a manifest (DESIGN §4)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from job_wrapper.errors import CheckpointFailed, StoreError
from job_wrapper.store import checkpoint_codec, paths
from job_wrapper.store.checksum import PREFIX, checksum
from job_wrapper.store.io_types import Item, ItemKind, Manifest, ObjectRef, ObjectStore, Part
from job_wrapper.store.loans import Loans
from job_wrapper.store.packs import LARGE, SEGMENT, Job, PackThread, Place, Work, reusable
from job_wrapper.store.read import read_part

MAX_PENDING = 64 << 20
"""Bytes handed to the pack writers and not yet written, at which ``add_…`` waits."""
MAX_FILES = 96 << 20
"""Bytes of large files in memory at most, those that a bucket's client still sends included."""
_BATCH_BYTES = 2 << 20
_BATCH_ITEMS = 512


class BaseGoneError(CheckpointFailed):
    """What the part would point to in an older checkpoint is not there any more: without that base it can be written."""


class PartWriter:
    """Writes one part: what one rank, or the state-directory saver, puts into a checkpoint.

    ``base`` is the same part of the last commit: segments that are the same are pointed to there and not written again.
    ``threads`` pack writers work at the same time, each on a pack of its own. **Content passed to ``add_tensor`` and ``add_bytes`` is not
    copied: it must not change before ``finish`` or ``abort`` returns.** References to it are dropped as soon as it is written, and
    ``add_…`` waits while 64 MiB are pending. One thread at a time may call. Every method raises the first ``StoreError`` of any thread.
    """

    def __init__(
        self,
        store: ObjectStore,
        data_prefix: str,
        name: str,
        *,
        base: Part | None = None,
        threads: int = 2,
        pack_size: int = 512 << 20,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        """``tell`` is told how many more bytes are on their way to the store."""
        paths.check_name(name, "part name")
        self.name = name
        self._key_stem = f"{data_prefix}/{name}-{os.urandom(6).hex()}"
        self._work = Work(store, self._key_stem, max(pack_size, SEGMENT))
        self._base_sizes: dict[str, int] = dict(base.attributes.get(checkpoint_codec.PACK_SIZES, {})) if base else {}
        self._base = reusable(base, self._base_sizes) if base else {}
        self._rows: list[tuple[str, str, dict[str, Any], list[Place | None]]] = []
        self._names: set[str] = set()
        self._batch: list[Job] = []
        self._batch_bytes = 0
        self._done = False
        self._tell = tell
        self._files = Loans(MAX_FILES, SEGMENT)
        self._threads = [PackThread(self._work) for _ in range(max(1, threads))]
        for thread in self._threads:
            thread.start()

    @property
    def uploaded(self) -> int:
        """Bytes of packs really written so far; all of them once ``finish`` has returned."""
        return self._work.uploaded

    def add_tensor(
        self, name: str, data: memoryview | bytes, *, dtype: str, shape: Sequence[int], **attributes: Any
    ) -> None:
        """Add a contiguous tensor shard. ``data`` holds its bytes, of any item size; it is not copied (see the class)."""
        self._add(name, ItemKind.TENSOR, data, {"dtype": dtype, "shape": list(shape), **attributes})

    def add_streamed(
        self, name: str, length: int, copy: Callable[[memoryview, int], None], *, dtype: str, shape: Sequence[int]
    ) -> None:
        """Add a tensor of ``length`` bytes through at most ``MAX_FILES`` bytes of memory: ``copy(view, offset)`` fills it, from ``offset`` on."""
        ranges = _pieces(length, ())
        places = self._row(name, ItemKind.TENSOR, {"dtype": dtype, "shape": list(shape)}, len(ranges))
        for index, (offset, count) in enumerate(ranges):
            view = memoryview(bytearray(count)) if count < LARGE else self._files.take(count, self._still)
            copy(view, offset)
            self._enqueue(Job(view, places, index, self._base_place(name, index)))

    def add_bytes(self, name: str, data: bytes | memoryview, **attributes: Any) -> None:
        """Add a named byte string."""
        self._add(name, ItemKind.BYTES, data, attributes)

    def add_together(self, data: memoryview, items: Sequence[tuple[str, int, int]]) -> None:
        """Add byte strings that lie in ``data``, so that it is written as a whole: name, offset and length (1 to ``SEGMENT``) of each, in order.

        ``data`` is not longer than ``SEGMENT``. Where one of them is unchanged the others are written alone.
        """
        whole = Job(data, [], 0, None)
        for name, offset, length in items:
            job = Job(
                data[offset : offset + length], self._row(name, ItemKind.BYTES, {}, 1), 0, self._base_place(name, 0)
            )
            whole.within.append((offset, job))
        self._hand_over([whole])

    def add_entry(self, name: str, kind: ItemKind, attributes: Mapping[str, Any]) -> None:
        """Add something without bytes: a directory or a symlink."""
        self._row(name, kind, dict(attributes), 0)

    def add_file(
        self, name: str, path: Path, *, attributes: Mapping[str, Any], opener: Callable[[str, int], int] | None = None
    ) -> None:
        """Add a file's content, streamed through at most ``MAX_FILES`` bytes of memory. ``opener`` as ``open`` takes it.

        ``attributes["holes"]``, if there, lists [offset, length] of the parts of a sparse file that are not read (``find_holes`` finds
        them). A file that grows meanwhile is stored as long as it was when it was opened; one that shrinks, as long as it is, but
        with holes that is an error. Raises ``CheckpointFailed`` naming the path if it can't be read.
        """
        try:
            with open(path, "rb", buffering=0, opener=opener) as file:
                size = os.fstat(file.fileno()).st_size
                ranges = _pieces(size, attributes.get("holes") or ())
                places = self._row(name, ItemKind.FILE, dict(attributes), len(ranges))
                for index, (offset, length) in enumerate(ranges):
                    # Small ones are gathered and gone at once; their number in memory is bounded as all content's is.
                    view = memoryview(bytearray(length)) if length < LARGE else self._files.take(length, self._still)
                    count = _read_fully(file.fileno(), view, offset)
                    if count < length and attributes.get("holes"):
                        raise CheckpointFailed(f"{path}: became shorter while it was being saved")
                    if count:
                        base = self._base_place(name, index)
                        self._enqueue(Job(view[:count], places, index, base))
                    if count < length:
                        break
        except OSError as error:
            raise CheckpointFailed(f"{path}: can't be read: {error.strerror or error}") from error

    def add_unchanged(self, item: Item) -> bool:
        """Add an item of ``base`` without its content being read again; ``item`` has its name and segments, and may have new attributes.

        False, with nothing added, if ``base`` does not hold it or its packs are to be written anew (see ``reusable``).
        """
        places = self._base.get(item.name, [])
        wanted = [(s.pack, s.offset, s.length, s.checksum.removeprefix(PREFIX)) for s in item.segments]
        if places != wanted:
            return False
        self._row(item.name, item.kind, dict(item.attributes), len(wanted))[:] = wanted
        return True

    def _add(self, name: str, kind: ItemKind, data: memoryview | bytes, attributes: dict[str, Any]) -> None:
        view = memoryview(data)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B") if view.nbytes else memoryview(b"")
        length = len(view)
        if length <= SEGMENT:
            places = self._row(name, kind, attributes, 1 if length else 0)
            if length:
                base = self._base.get(name)
                self._enqueue(Job(view, places, 0, base[0] if base else None))
            return
        pieces = range(0, length, SEGMENT)
        places = self._row(name, kind, attributes, len(pieces))
        for index, offset in enumerate(pieces):
            self._hand_over([Job(view[offset : offset + SEGMENT], places, index, self._base_place(name, index))])

    def _base_place(self, name: str, index: int) -> Place | None:
        base = self._base.get(name)
        return base[index] if base and index < len(base) else None

    def _row(self, name: str, kind: ItemKind, attributes: dict[str, Any], segments: int) -> list[Place | None]:
        if self._done:
            raise StoreError(f"part {self.name}: already finished or given up")
        if name in self._names:
            raise CheckpointFailed(f"part {self.name}: two items are named {name!r}")
        self._names.add(name)
        places: list[Place | None] = [None] * segments
        self._rows.append((name, kind.value, attributes, places))
        return places

    def _enqueue(self, job: Job) -> None:
        """Hand over in batches: so many small segments would wake the pack writers too often."""
        self._batch.append(job)
        self._batch_bytes += len(job.data)
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_ITEMS:
            self._flush_batch()

    def _flush_batch(self) -> None:
        if self._batch:
            batch, self._batch, self._batch_bytes = self._batch, [], 0
            self._hand_over(batch)

    def _hand_over(self, batch: list[Job]) -> None:
        work = self._work
        count = sum(len(job.data) for job in batch)
        with work.room:
            while work.pending > MAX_PENDING and work.failure is None:
                work.room.wait()
            if work.failure is not None:
                raise work.failure
            work.pending += count
        work.jobs.put(batch)
        if self._tell is not None:
            self._tell(count)

    def _still(self) -> None:
        if self._work.failure is not None:
            raise self._work.failure

    def finish(self, attributes: Mapping[str, Any] | None = None) -> ObjectRef:
        """Make all packs durable, then store the part. Returns its pointer, for ``write_manifest``. Raises ``BaseGoneError`` with nothing stored."""
        if self._done:
            raise StoreError(f"part {self.name}: already finished or given up")
        try:
            self._flush_batch()
            self._stop_threads()
            if self._work.failure is not None:
                raise self._work.failure
            rows, sizes = self._encoded_rows()
            self._look_at_base(sizes)
            data = checkpoint_codec.encode_part(self.name, sizes, rows, attributes or {})
            key = f"{self._key_stem}.part"
            self._work.store.put(key, data)
        except BaseException:
            self.abort()
            raise
        self._done = True
        return ObjectRef(key, len(data), checksum(data))

    def _encoded_rows(self) -> tuple[list[list[Any]], dict[str, int]]:
        index: dict[str, int] = {}
        rows = []
        for name, kind, attributes, places in self._rows:
            row: list[Any] = [name, kind, attributes]
            for place in places:
                if place is None:
                    continue  # a file that became shorter while it was read
                pack = index.setdefault(place[0], len(index))
                row += (pack, *place[1:])
            rows.append(row)
        return rows, {key: self._work.sizes.get(key) or self._base_sizes[key] for key in index}

    def _look_at_base(self, sizes: Mapping[str, int]) -> None:
        """Found here all of it can still be written; found at the commit it would only be an error, and again at each later save."""
        for key, size in sizes.items():
            if key not in self._work.sizes:
                stored = next((info.size for info in self._work.store.list(key) if info.key == key), None)
                if stored != size:
                    found = "is gone" if stored is None else f"has {stored} bytes instead of {size}"
                    raise BaseGoneError(f"{self._work.store.uri}/{key}: {found}, though the last checkpoint needs it")

    def _stop_threads(self) -> None:
        for _ in self._threads:
            self._work.jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def abort(self) -> None:
        """Give up: stop the threads, remove the packs. Safe to call after a failure, and more than once."""
        if self._done:
            return
        self._done = True
        self._work.fail(StoreError(f"part {self.name}: given up"))
        self._batch = []
        self._stop_threads()
        with contextlib.suppress(StoreError):  # ``collect`` removes them under a later epoch
            self._work.store.delete(list(self._work.sizes))

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def find_holes(path: Path, opener: Callable[[str, int], int] | None = None) -> list[list[int]]:
    """[offset, length] of the holes of a sparse file, in order; empty where there are none or the file system can't tell."""
    holes: list[list[int]] = []
    with open(path, "rb", buffering=0, opener=opener) as file:
        fd, size, end = file.fileno(), os.fstat(file.fileno()).st_size, 0
        while end < size:
            try:
                start = os.lseek(fd, end, os.SEEK_DATA)
            except OSError:
                start = size  # no data after ``end``
            if start > end:
                holes.append([end, start - end])
            end = os.lseek(fd, start, os.SEEK_HOLE) if start < size else size
    return holes


def _pieces(size: int, holes: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(offset, length) of at most ``SEGMENT`` bytes that cover a file of ``size`` bytes but for its holes. Pure."""
    pieces: list[tuple[int, int]] = []
    start = 0
    for hole_start, hole_length in [*holes, (size, 0)]:
        stop = min(hole_start, size)
        pieces += ((at, min(SEGMENT, stop - at)) for at in range(start, stop, SEGMENT))
        start = max(start, hole_start + hole_length)
    return pieces


def _read_fully(fd: int, view: memoryview, offset: int) -> int:
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_manifest(
    store: ObjectStore,
    run: str,
    epoch: int,
    data_prefix: str,
    *,
    step: int | None,
    parts: Mapping[str, ObjectRef],
    attributes: Mapping[str, Any] | None = None,
) -> ObjectRef:
    """Store the manifest of a checkpoint whose parts are stored; returns its pointer, for ``Claim.commit``.

    Every part is read back and verified, and every pack that it names must be there in its full length: what is missing is found
    before the commit, not at a restore. Raises ``Damaged`` or ``ObjectMissing`` naming the part or the pack.
    """
    sizes: dict[str, int] = {}
    for name, ref in parts.items():
        part = read_part(store, ref)
        if part.name != name:
            raise CheckpointFailed(f"{store.uri}/{ref.key}: holds part {part.name!r}, but was given as {name!r}")
        sizes.update(part.attributes[checkpoint_codec.PACK_SIZES])
    _check_packs(store, paths.data_root(run), sizes)
    manifest = Manifest(run, epoch, step, dict(parts), tuple(sorted(sizes)), dict(attributes or {}))
    data = checkpoint_codec.encode_manifest(manifest)
    key = f"{data_prefix}/manifest-{os.urandom(6).hex()}.json"
    store.put(key, data)
    return ObjectRef(key, len(data), checksum(data))


def _check_packs(store: ObjectStore, root: str, sizes: Mapping[str, int]) -> None:
    if not sizes:
        return
    stored = {info.key: info.size for info in store.list(root)}
    for key, size in sizes.items():
        if stored.get(key) != size:
            raise CheckpointFailed(
                f"{store.uri}/{key}: the checkpoint needs {size} bytes of it, but "
                + (f"{stored[key]} are stored" if key in stored else "it is not stored")
            )
