"""The staging arena: host memory, touched beforehand, that a save copies the state into while the training stops.

Fresh pages cost about ten times as much as the copy itself (1.8 against 21 GB/s), so the arena is allocated and touched once,
beside the training, and used for every save.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from job_wrapper.checkpoint.state import dtype_name

ALIGNMENT = 64
"""Bytes: any dtype can be viewed at such an offset."""
_GRAIN = 2 << 20
"""Bytes: a huge page."""
_SMALL = 256 << 10
"""Bytes: below this the way through torch costs more than the copy, and its threads gain nothing."""


@dataclass(frozen=True, slots=True)
class Staged:
    """One tensor's bytes, row-major, in the arena until it is released."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def size_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes that these tensors take in the arena."""
    return sum(_aligned(t.numel() * t.element_size()) for t in tensors.values())


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy (and without NumPy). The tensor must outlive the view."""
    length = tensor.numel() * tensor.element_size()
    if not length:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * length).from_address(tensor.data_ptr())).cast("B")


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


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

    def stage(self, tensors: Mapping[str, torch.Tensor]) -> list[Staged]:
        """Copy all of them; when this returns the program may change them. Held until ``release``."""
        size = size_of(tensors)
        devices = {t.device for t in tensors.values() if t.device.type != "cpu"}
        with self._lock:
            if self._held:
                raise RuntimeError("the staging arena still holds another save")
            self._reserve(size, any(d.type == "cuda" for d in devices))
            self._held = True
        try:
            staged = self._copy(tensors)
            for device in devices:
                # The copies were put behind the step's own work on its stream; only now are they done.
                torch.accelerator.synchronize(device)
        except BaseException:
            self._held = False
            raise
        return staged

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
                pages = mmap.mmap(-1, rounded)
            except OSError as error:
                raise MemoryError(f"{rounded} bytes of staging memory are not to be had: {error.strerror}") from error
            if hasattr(mmap, "MADV_HUGEPAGE"):
                pages.madvise(mmap.MADV_HUGEPAGE)
            self._bytes = torch.frombuffer(pages, dtype=torch.uint8)
            ctypes.memset(self._bytes.data_ptr(), 0, rounded)
        self._view = memory_of(self._bytes)
        self.allocations += 1

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> list[Staged]:
        arena, view = self._bytes, self._view
        base = arena.data_ptr() if arena is not None else 0
        staged = []
        offset = 0
        for name, tensor in tensors.items():
            length = tensor.numel() * tensor.element_size()
            if length:
                assert arena is not None  # noqa: S101
                plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
                if plain and length < _SMALL and tensor.device.type == "cpu":
                    ctypes.memmove(base + offset, tensor.data_ptr(), length)
                elif plain:
                    # As bytes: there are dtypes (int4, …) that have no copy of their own.
                    arena[offset : offset + length].copy_(tensor.reshape(-1).view(torch.uint8), non_blocking=True)
                else:
                    arena[offset : offset + length].view(tensor.dtype).view(tensor.shape).copy_(
                        tensor, non_blocking=True
                    )
            staged.append(Staged(name, dtype_name(tensor.dtype), tuple(tensor.shape), view[offset : offset + length]))
            offset += _aligned(length)
        return staged
