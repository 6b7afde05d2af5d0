"""Host memory for staging: how much of it this process may still use, and pages that are touched before they are needed.

Fresh pages cost several times as much as the copy itself, on a virtual machine that gave them back to its host up to thirty times.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

_GRAIN = 2 << 20
"""Bytes: a huge page."""
_STEP = 8 << 20
"""Bytes touched between two looks at whether somebody waits."""
_SPARE = 64 << 20
_NORESERVE = 0x4000
_USABLE = 0.95
"""Of the memory that is free: the rest is left to the program's own ups and downs."""


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy (and without NumPy). The tensor must outlive the view."""
    length = tensor.numel() * tensor.element_size()
    if not length:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * length).from_address(tensor.data_ptr())).cast("B")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes in memory are its values in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor as bytes: there are dtypes (int4, …) that have no copy of their own. Of one element the strides may be anything."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait until they have done what was put on their streams: the step's own work, and copies out of it."""
    for device in devices:
        (torch.cuda if device.type == "cuda" else torch.accelerator).synchronize(device)


def available(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process may still use before the machine or its job's memory limit (cgroup v1 or v2) is full.

    Page cache counts as free, for the kernel gives it up. None where the system doesn't tell.
    """
    return min((n for n in (_machine(proc), *_limits(proc, cgroups)) if n is not None), default=None)


def _machine(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def _limits(proc: Path, cgroups: Path) -> Iterator[int | None]:
    """What is left in each control group that this process is in."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, names = cgroups, ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        folder = root / path.lstrip("/")
        while True:
            yield _left(folder, *names)
            if folder == root:
                break
            folder = folder.parent


def _left(folder: Path, limit: str, usage: str, total: str) -> int | None:
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cache = int(stat.get(f"{total}inactive_file", 0)) + int(stat.get(f"{total}active_file", 0))
    except (OSError, ValueError):  # no limit ("max"), or no such group
        return None
    return max(0, most - used + cache)


class NoRoomError(MemoryError):
    """There is not enough host memory to stage the state in."""


class Pages:
    """Memory for ``size`` bytes that may become more: addresses are reserved for about twice that, and pages only where they are touched.

    ``pinned`` memory is what a GPU copies into at full speed; it is all there at once. Raises ``NoRoomError``.
    """

    def __init__(self, size: int, *, pinned: bool = False) -> None:
        self._check(size)
        rounded = -(-size // _GRAIN) * _GRAIN
        if pinned:
            try:
                self.bytes = torch.empty(rounded, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                raise NoRoomError(f"{rounded >> 20} MiB of pinned memory are not to be had: {error}") from error
            self.touched = rounded
        else:
            try:
                spare = rounded + _SPARE if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY else 0
                pages = _mapped(rounded + spare, _NORESERVE)
            except OSError:  # a kernel that counts addresses, too
                try:
                    pages = _mapped(rounded, 0)
                except OSError as error:
                    raise NoRoomError(f"{rounded} bytes are not to be had: {error.strerror}") from error
            if hasattr(mmap, "MADV_HUGEPAGE"):
                pages.madvise(mmap.MADV_HUGEPAGE)
            # A loader's workers do not need it, and its pages would have to be copied after each fork.
            pages.madvise(mmap.MADV_DONTFORK)
            self.bytes = torch.frombuffer(pages, dtype=torch.uint8)
            self.touched = 0
        self.view = memory_of(self.bytes)
        self.address = self.bytes.data_ptr()

    def touch(self, size: int, hurry: Callable[[], bool] = lambda: False) -> None:
        """Make the first ``size`` bytes real, until ``hurry()``. Raises ``NoRoomError`` rather than have the job killed for its memory."""
        self._check(size - self.touched)
        while self.touched < size and not hurry():
            step = min(_STEP, len(self.view) - self.touched)
            ctypes.memset(self.address + self.touched, 0, step)
            self.touched += step

    @staticmethod
    def _check(more: int) -> None:
        if more <= 0:
            return
        free = available()
        if free is not None and more > free * _USABLE:
            raise NoRoomError(f"{more >> 20} MiB are needed and {free >> 20} MiB are free")


def _mapped(size: int, flags: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
