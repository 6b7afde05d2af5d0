"""The staging arena: host memory, touched beforehand, that a save copies the state into while the training stops.

Fresh pages cost about ten times as much as the copy itself (1.8 against 21 GB/s), so the arena is allocated and touched once,
beside the training, and used for every save.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from job_wrapper.checkpoint.bundles import BELOW, SIZE, Bundle, Row, aligned
from job_wrapper.checkpoint.state import dtype_name

PAGE = 4096
"""Bytes: tensors that are no part of a bundle begin at a page."""
_GRAIN = 2 << 20
"""Bytes: a huge page."""
_SMALL = 256 << 10
"""Bytes: below this the way through torch costs more than the copy, and its threads gain nothing."""

_FEW = 2

_Sized = tuple[str, torch.Tensor, int]


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


def size_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes that these tensors take in the arena."""
    return _plan(tensors)[2]


def _plan(tensors: Mapping[str, torch.Tensor]) -> tuple[list[_Sized], list[_Sized], int]:
    """Tensors for bundles, the others, and the bytes of the arena that they need."""
    small: list[_Sized] = []
    large: list[_Sized] = []
    little = much = 0
    for name, tensor in tensors.items():
        length = tensor.numel() * tensor.element_size()
        if length < BELOW:
            small.append((name, tensor, length))
            little += aligned(length)
        else:
            large.append((name, tensor, length))
            much += _paged(length)
    return small, large, _paged(little) + much


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy (and without NumPy). The tensor must outlive the view."""
    length = tensor.numel() * tensor.element_size()
    if not length:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * length).from_address(tensor.data_ptr())).cast("B")


def _paged(length: int) -> int:
    return -(-length // PAGE) * PAGE


class Arena:
    """Grows when the state does, which costs one longer stop; ``allocations`` counts that. One save may hold it at a time."""

    def __init__(self) -> None:
        self.allocations = 0
        self._lock = threading.Lock()
        self._held = False
        self._bytes: torch.Tensor | None = None
        self._view = memoryview(bytearray())

    @property
    def capacity(self) -> int:
        """Bytes."""
        return len(self._view)

    def prepare(self, size: int, *, pinned: bool = False) -> None:
        """Allocate and touch at least ``size`` bytes unless they are there; a thread of its own may do it beforehand.

        ``pinned`` memory is what a GPU copies into at full speed. Raises ``MemoryError`` where the memory isn't to be had.
        """
        with self._lock:
            self._reserve(size, pinned)

    def stage(self, tensors: Mapping[str, torch.Tensor]) -> Batch:
        """Copy all of them; when this returns the program may change them. Held until ``release``."""
        small, large, size = _plan(tensors)
        devices = {t.device for t in tensors.values() if t.device.type != "cpu"}
        with self._lock:
            if self._held:
                raise RuntimeError("the staging arena still holds another save")
            self._reserve(size, any(d.type == "cuda" for d in devices))
            self._held = True
        try:
            batch = Batch()
            self._copy_large(large, batch, self._copy_small(small, batch))
            for device in devices:
                # The copies were put behind the step's own work on its stream; only now are they done.
                torch.accelerator.synchronize(device)
        except BaseException:
            self._held = False
            raise
        return batch

    def release(self) -> None:
        """The staged bytes are no longer needed."""
        self._held = False

    def _reserve(self, size: int, pinned: bool) -> None:
        if size <= self.capacity:
            return
        if self._held:
            raise RuntimeError("the staging arena still holds another save")
        self._bytes, self._view = None, memoryview(bytearray())  # the old one goes before the new one comes
        rounded = -(-size // _GRAIN) * _GRAIN
        if pinned:
            self._bytes = torch.empty(rounded, dtype=torch.uint8, pin_memory=True)
        else:
            try:
                pages = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise MemoryError(f"{rounded} bytes of staging memory are not to be had: {error.strerror}") from error
            if hasattr(mmap, "MADV_HUGEPAGE"):  # with huge pages it is touched in a third of the time
                pages.madvise(mmap.MADV_HUGEPAGE)
            # A loader's workers do not need it, and its pages would have to be copied after each fork.
            pages.madvise(mmap.MADV_DONTFORK)
            self._bytes = torch.frombuffer(pages, dtype=torch.uint8)
            ctypes.memset(self._bytes.data_ptr(), 0, rounded)
        self._view = memory_of(self._bytes)
        self.allocations += 1

    @torch.no_grad()
    def _copy_small(self, tensors: list[_Sized], batch: Batch) -> int:
        """Copy what goes into bundles; returns the end in the arena."""
        if not tensors:
            return 0
        view = self._view
        base = self._bytes.data_ptr() if self._bytes is not None else 0
        move = ctypes.memmove
        start = end = 0
        rows: list[Row] = []
        for name, tensor, length in tensors:
            offset = aligned(end)
            if offset + length > start + SIZE:
                batch.bundles.append(Bundle(rows, view[start:end]))
                start, rows = offset, []
            end = offset + length
            rows.append((name, tensor.dtype, tensor.shape))
            if not length:
                continue
            if not tensor.is_cpu:
                self._copy_to(tensor, offset, length)
                continue
            plain = tensor.contiguous()
            if plain.is_conj() or plain.is_neg():
                plain = plain.resolve_conj().resolve_neg()
            move(base + offset, plain.data_ptr(), length)
        batch.bundles.append(Bundle(rows, view[start:end]))
        return end

    @torch.no_grad()
    def _copy_large(self, tensors: list[_Sized], batch: Batch, offset: int) -> None:
        view = self._view
        base = self._bytes.data_ptr() if self._bytes is not None else 0
        # Two threads copy hardly faster than one, and on a busy machine they wait for each other.
        few = torch.get_num_threads() <= _FEW
        for name, tensor, length in tensors:
            offset = _paged(offset)
            if tensor.is_cpu and (few or length < _SMALL) and _plain(tensor):
                ctypes.memmove(base + offset, tensor.data_ptr(), length)
            else:
                self._copy_to(tensor, offset, length)
            end = offset + length
            batch.tensors.append(Staged(name, dtype_name(tensor.dtype), tuple(tensor.shape), view[offset:end]))
            offset = end

    def _copy_to(self, tensor: torch.Tensor, offset: int, length: int) -> None:
        assert self._bytes is not None  # noqa: S101
        target = self._bytes[offset : offset + length]
        if _plain(tensor):
            # As bytes: there are dtypes (int4, …) that have no copy of their own.
            target.copy_(tensor.reshape(-1).view(torch.uint8), non_blocking=True)
        else:
            target.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
