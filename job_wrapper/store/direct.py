"""Which writes go to the disk straight from the caller's memory (``O_DIRECT``): large ones whose memory and place begin at a page.

They skip the copy into the page cache and keep the disk busy from the first byte on; buffered ones wait for ``fsync``. Where a file
system does not take them they are buffered writes.
"""

from __future__ import annotations

import fcntl
import os

PAGE = 4096
"""Bytes: no disk asks for a larger alignment."""
LEAST = 1 << 20
"""Bytes: smaller writes gain nothing."""
_FLAG = getattr(os, "O_DIRECT", 0)


def direct_length(view: memoryview, offset: int) -> int:
    """How many bytes at the start of ``view``, which goes to ``offset`` of a file, can be written directly."""
    if not _FLAG or view.readonly or offset % PAGE or len(view) < LEAST:
        return 0
    import ctypes  # not at the start of every wrapper

    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
    return 0 if address % PAGE else len(view) // PAGE * PAGE


def set_direct(fd: int, on: bool) -> bool:
    """Turn it on or off for an open file; False if the file system has no such thing."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | _FLAG if on else flags & ~_FLAG)
    except OSError:
        return False
    return True
