"""Which memory of this process was written since a moment: from its page tables, so that no write of a processor goes unseen.

The kernel's asynchronous write protection of userfaultfd(2), and the ``PAGEMAP_SCAN`` ioctl that reads what came of it (Linux 6.7 and newer,
x86-64 and arm64; Documentation/admin-guide/mm/pagemap.rst and userfaultfd.rst). A write is never held up by more than one page fault.
torch's own count of writes (``Tensor._version``) would not do: writes through ``.data``, NumPy and extensions in C++ are not in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Iterable

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
"""Number of the system call."""
_USER_MODE_ONLY = 1
"""What a process without privileges may ask for (/proc/sys/vm/unprivileged_userfaultfd)."""
_FEATURES = 1 << 0 | 1 << 13 | 1 << 15
"""Write protection; of pages, too, that are not there yet; and without somebody who answers."""
_API_VERSION, _MODE_WP = 0xAA, 2
_PAGE_IS_WRITTEN, _PAGE_IS_FILE = 1 << 1, 1 << 2
"""The latter stands for memory that other processes may share: their writes are in their own page tables."""
_CHECK_WPASYNC = 1 << 1
"""Fail for memory that is not under this protection (any more)."""


def _request(direction: int, kind: int, number: int, size: int) -> int:
    """``_IOC`` of the kernel's headers."""
    return direction << 30 | size << 16 | kind << 8 | number


_API = _request(3, 0xAA, 0x3F, 24)
_REGISTER = _request(3, 0xAA, 0x00, 32)
_UNREGISTER = _request(2, 0xAA, 0x01, 16)
_WRITEPROTECT = _request(3, 0xAA, 0x06, 24)
_SCAN = _request(3, ord("f"), 16, 96)


def whole_pages(address: int, length: int) -> tuple[int, int]:
    """First address and length of the pages that lie in this memory as a whole: nothing else can be in them."""
    page = mmap.PAGESIZE
    begin = -(-address // page) * page
    return begin, max(0, (address + length) // page * page - begin)


class WriteTracker:
    """Tells whether memory was written between ``begin`` and ``written``. One use at a time.

    Not seen are writes of devices into memory that is pinned for them. Raises ``OSError`` where the kernel can't, or doesn't let
    this process, do it.
    """

    def __init__(self) -> None:
        number = _USERFAULTFD.get(platform.machine()) if platform.system() == "Linux" else None
        if number is None:
            raise OSError(f"not known on {platform.system()} {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        self._uffd = int(libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY))
        if self._uffd < 0:
            raise OSError(ctypes.get_errno(), f"userfaultfd: {os.strerror(ctypes.get_errno())}")
        self._pagemap = -1
        self._owner = os.getpid()
        self._ranges: list[tuple[int, int]] = []
        try:
            fcntl.ioctl(self._uffd, _API, struct.pack("QQQ", _API_VERSION, _FEATURES, 0))
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            with mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as probe:
                self._probe(probe)
        except BaseException:
            self.close()
            raise

    def _probe(self, memory: mmap.mmap) -> None:
        """One that doesn't see a write, or sees one that wasn't, is none."""
        first = ctypes.c_char.from_buffer(memory)
        self.begin([(ctypes.addressof(first), len(memory))])
        try:
            before = self.written()
            first.value = b"x"
            if before or not self.written():
                raise OSError("the kernel's tracking of writes does not work")
        finally:
            self.end()
            del first

    def begin(self, ranges: Iterable[tuple[int, int]]) -> None:
        """From now on, for memory at (address, bytes), whole pages that stay mapped until ``end``. Raises ``OSError``: then for none of it."""
        if os.getpid() != self._owner:
            raise OSError("a forked process has other page tables")
        try:
            for begin, length in ranges:
                self._ranges.append((begin, length))
                fcntl.ioctl(self._uffd, _REGISTER, bytearray(struct.pack("QQQQ", begin, length, _MODE_WP, 0)))
                fcntl.ioctl(self._uffd, _WRITEPROTECT, struct.pack("QQQ", begin, length, 1))
        except BaseException:
            self.end()
            raise

    def written(self) -> bool:
        """Whether any of it was written, or may have been: memory that is shared with other processes counts as written."""
        found = (ctypes.c_uint64 * 3)()
        wanted = _PAGE_IS_WRITTEN | _PAGE_IS_FILE
        for begin, length in self._ranges:
            scan = (96, _CHECK_WPASYNC, begin, begin + length, 0, ctypes.addressof(found), 1, 1, 0, 0, wanted, wanted)
            try:
                if fcntl.ioctl(self._pagemap, _SCAN, bytearray(struct.pack("12Q", *scan))):
                    return True
            except (OSError, ValueError):  # no longer mapped as it was; closed
                return True
        return False

    def end(self) -> None:
        """Writes cost no page fault any more. More than once is fine."""
        ranges, self._ranges = self._ranges, []
        for begin, length in ranges:
            for request, values in ((_WRITEPROTECT, (begin, length, 0)), (_UNREGISTER, (begin, length))):
                try:
                    fcntl.ioctl(self._uffd, request, struct.pack(f"{len(values)}Q", *values))
                except (OSError, ValueError):
                    continue  # never begun, or no longer mapped; closed

    def close(self) -> None:
        """Ends what it tracks, too."""
        for descriptor in (self._uffd, self._pagemap):
            if descriptor >= 0:
                os.close(descriptor)
        self._uffd = self._pagemap = -1
