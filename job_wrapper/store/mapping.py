"""Looking at a part of a file where it lies in the page cache, without a copy."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

from job_wrapper.errors import Damaged
from job_wrapper.store.regular import open_regular

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14: where reading a page would end the process with SIGBUS it is an error instead."""


def map_file(path: str, offset: int, length: int) -> tuple[mmap.mmap, int] | None:
    """Pages that hold ``length`` bytes from ``offset`` on, and where these begin in them; None where the file system can't.

    Raises ``OSError``, and ``Damaged`` for a shorter file.
    """
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    fd = open_regular(path)
    try:
        if os.fstat(fd).st_size < offset + length:
            raise Damaged(f"{path}: shorter than it was written: bytes before {offset + length} are missing")
        # Private and writable only because ctypes gives no address of what is read-only.
        access = mmap.PROT_READ | mmap.PROT_WRITE
        try:
            return mmap.mmap(fd, offset + length - start, mmap.MAP_PRIVATE, access, offset=start), offset - start
        except OSError:
            return None
    finally:
        os.close(fd)


@contextlib.contextmanager
def read_pages(found: tuple[mmap.mmap, int] | None) -> Iterator[memoryview | None]:
    """The bytes that ``map_file`` found, read; None where that can't be done. The mapping is gone afterwards."""
    if found is None:
        yield None
        return
    pages, begin = found
    with contextlib.closing(pages):
        try:
            pages.madvise(_POPULATE_READ)
        except OSError:  # an older kernel, or a disk that fails: reading will tell
            yield None
            return
        with memoryview(pages) as whole, whole[begin:] as view:
            yield view
