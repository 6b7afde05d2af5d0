"""The staging arena: host memory, touched beforehand, that a save copies the state into while the training stops."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter

import torch

from job_wrapper.checkpoint.bundles import ALIGNMENT, BELOW, INDEX, SIZE, Bundle, Row, aligned, encode_index, name_of
from job_wrapper.checkpoint.memory import NoRoomError, Pages, bytes_of, is_plain, memory_of, synchronize
from job_wrapper.checkpoint.state import dtype_name
from job_wrapper.store import PartWriter

log = logging.getLogger("spotburst")

__all__ = ["Arena", "Batch", "Staged", "memory_of", "size_of"]

PAGE = 4096
"""Bytes: tensors that are no part of a bundle begin at a page."""
_PIECE = 4 << 20
"""Bytes: what a copying thread takes at a time; a thread that has to wait for a processor holds up no more than that."""
_THREADS = 4
"""Copying threads at most: so many fill a memory bus."""
_PER_THREAD = 16 << 20
_ALIKE = 16
"""So many small tensors of one shape are copied by one call."""
_JOINED = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8}

_Sized = tuple[str, torch.Tensor, int]
_Piece = tuple[int, int, int]
"""To, from, how many bytes."""


@dataclass(frozen=True, slots=True)
class Staged:
    """One tensor's bytes, row-major, in the arena until it is released."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(slots=True)
class Batch:
    """All that a save has to write."""

    tensors: list[Staged] = field(default_factory=list)
    bundles: list[Bundle] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(len(one.data) for one in self.tensors) + sum(len(one.data) for one in self.bundles)

    def write(self, writer: PartWriter, done: Callable[[int], None]) -> None:
        """Into the part. ``done`` is told the bytes of each item, and may raise."""
        if self.bundles:
            writer.add_bytes(INDEX, encode_index(self.bundles))
        for number, bundle in enumerate(self.bundles):
            writer.add_bytes(name_of(number), bundle.data)
            done(len(bundle.data))
        for one in self.tensors:
            writer.add_tensor(one.name, one.data, dtype=one.dtype, shape=one.shape)
            done(len(one.data))


def size_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes that these tensors take in the arena."""
    return plan(tensors)[2]


def plan(tensors: Mapping[str, torch.Tensor]) -> tuple[list[_Sized], list[_Sized], int]:
    """Tensors for bundles, the others, each with its length, and the bytes of the arena that they all need."""
    lengths = list(map(attrgetter("nbytes"), tensors.values()))
    small = list(zip(tensors, tensors.values(), lengths, strict=True))
    large: list[_Sized] = []
    if lengths and max(lengths) >= BELOW:
        large = [one for one in small if one[2] >= BELOW]
        small = [one for one in small if one[2] < BELOW]
    # Few lengths, and very many tensors: nothing here is done for each of them in turn.
    little = sum(aligned(length) * count for length, count in Counter(lengths).items() if length < BELOW)
    return small, large, _paged(little) + sum(_paged(length) for _, _, length in large)


def _paged(length: int) -> int:
    return -(-length // PAGE) * PAGE


class Arena:
    """Grows when the state does; ``allocations`` counts how often it was made anew for that. One save may hold it at a time."""

    def __init__(self) -> None:
        self.allocations = 0
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._held = False
        self._pages: Pages | None = None

    @property
    def capacity(self) -> int:
        """Bytes."""
        return len(self._pages.view) if self._pages is not None else 0

    def prepare(self, size: int, *, pinned: bool = False) -> None:
        """Allocate and touch at least ``size`` bytes unless they are there; a thread of its own may do it beforehand.

        Gives way to ``stage``, and leaves an arena alone that would have to be made anew while a save holds it. Raises ``NoRoomError``.
        """
        with self._lock:
            if size <= self.capacity or not self._held:
                self._reserve(size, pinned).touch(size, self._hurry.is_set)

    def prepare_beside(self, tensors: Mapping[str, torch.Tensor], more: int = 0) -> None:
        """``prepare`` for these tensors and ``more`` bytes in a thread of its own. Where there is no room the save will find out."""
        size, pinned = size_of(tensors) + more, any(t.is_cuda for t in tensors.values())

        def prepare() -> None:
            try:
                self.prepare(size, pinned=pinned)
            except NoRoomError as error:
                log.debug("no staging memory yet: %s", error)

        threading.Thread(target=prepare, name="spotburst-staging", daemon=True).start()

    def stage(self, tensors: Mapping[str, torch.Tensor]) -> Batch:
        """Copy all of them; when this returns the program may change them. Held until ``release``. Raises ``NoRoomError``."""
        small, large, size = plan(tensors)
        self._hurry.set()
        with self._lock:
            self._hurry.clear()
            if self._held:
                raise RuntimeError("the staging arena still holds another save")
            pages = self._reserve(size, any(t.is_cuda for t in tensors.values()))
            if pages.touched < size:
                pages.touch(size, lambda: True)  # is there room? The copying threads touch what is left themselves
                pages.touched = size
            self._held = True
        try:
            batch = Batch()
            end = _copy_small(pages, small, batch)
            _copy_large(pages, large, batch, end)
            synchronize(tensors.values())  # the copies were put behind the step's own work; only now are they done
        except BaseException:
            self._held = False
            raise
        return batch

    def release(self) -> None:
        """The staged bytes are no longer needed."""
        self._held = False

    def _reserve(self, size: int, pinned: bool) -> Pages:
        if self._pages is None or size > self.capacity:
            self._pages = None  # the old one goes before the new one comes
            self._pages = Pages(size, pinned=pinned)
            self.allocations += 1
        return self._pages


def _copy_small(pages: Pages, tensors: list[_Sized], batch: Batch) -> int:
    """Copy what goes into bundles; returns the end in the arena."""
    if not tensors:
        return 0
    names, live, lengths = zip(*tensors, strict=True)
    rows: list[Row] = list(zip(names, map(attrgetter("dtype"), live), map(attrgetter("shape"), live), strict=True))
    start = end = first = at = 0
    for (dtype, shape), group in groupby(map(itemgetter(1, 2), rows)):
        count, length = len(list(group)), lengths[at]
        stride = aligned(length)
        begin = offset = aligned(end)
        done = 0
        while done < count:
            room = start + SIZE - offset - length
            if room < 0:
                batch.bundles.append(Bundle(rows[first : at + done], pages.view[start:end]))
                start, first = offset, at + done
                continue
            fitting = min(count - done, room // stride + 1) if length else count - done
            end = offset + (fitting - 1) * stride + length
            offset = aligned(end)
            done += fitting
        if length:
            _copy_alike(pages, live[at : at + count], begin, length, dtype, shape)
        at += count
    batch.bundles.append(Bundle(rows[first:], pages.view[start:end]))
    return end


@torch.no_grad()
def _copy_alike(
    pages: Pages,
    tensors: tuple[torch.Tensor, ...],
    offset: int,
    length: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> None:
    """Small tensors of one dtype and shape, one after the other in the arena."""
    together = len(tensors) >= _ALIKE and shape and length % ALIGNMENT == 0 and dtype in _JOINED
    if together and all(map(attrgetter("is_cpu"), tensors)):
        target = pages.bytes[offset : offset + len(tensors) * length].view(dtype)
        torch.cat(tensors, out=target.view(len(tensors) * shape[0], *shape[1:]))
        return
    base, move = pages.address, ctypes.memmove
    for tensor in tensors:
        if tensor.is_cpu:
            plain = tensor.contiguous()
            if plain.is_conj() or plain.is_neg():
                plain = plain.resolve_conj().resolve_neg()
            move(base + offset, plain.data_ptr(), length)
        else:
            _copy_to(pages, tensor, offset, length)
        offset += aligned(length)


@torch.no_grad()
def _copy_large(pages: Pages, tensors: list[_Sized], batch: Batch, offset: int) -> None:
    pieces: list[_Piece] = []
    others: list[tuple[torch.Tensor, int, int]] = []
    base = pages.address
    for name, tensor, length in tensors:
        offset = _paged(offset)
        if tensor.is_cpu and is_plain(tensor):
            source = tensor.data_ptr()
            pieces += ((base + offset + at, source + at, min(_PIECE, length - at)) for at in range(0, length, _PIECE))
        else:
            others.append((tensor, offset, length))
        end = offset + length
        batch.tensors.append(Staged(name, dtype_name(tensor.dtype), tuple(tensor.shape), pages.view[offset:end]))
        offset = end
    left = iter(pieces)
    total = sum(length for _, _, length in pieces)
    helpers = [
        threading.Thread(target=_move, args=(left,), name="spotburst-copy", daemon=True)
        for _ in range(min(_processors(), _THREADS, total // _PER_THREAD) - 1)
    ]
    for helper in helpers:
        helper.start()
    try:
        for tensor, at, length in others:
            _copy_to(pages, tensor, at, length)
        _move(left)
    finally:
        for helper in helpers:
            helper.join()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _move(pieces: Iterator[_Piece]) -> None:
    """Copy until there are none left. Of several threads each takes the next piece: the interpreter lock is only free in the copy."""
    for target, source, length in pieces:
        ctypes.memmove(target, source, length)


def _copy_to(pages: Pages, tensor: torch.Tensor, offset: int, length: int) -> None:
    target = pages.bytes[offset : offset + length]
    if is_plain(tensor):
        target.copy_(bytes_of(tensor), non_blocking=True)
    else:
        target.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
