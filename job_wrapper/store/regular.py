"""Opening a stored file for reading where others may have put something else in its place.

A pipe would hold up whoever opens it until somebody writes, and a device may have no end. In a folder of many users the manager reads what
each of them lays there, so neither is ever waited for.
"""

from __future__ import annotations

import contextlib
import os
import stat

from job_wrapper.errors import Damaged


def open_regular(path: str) -> int:
    """A descriptor of a regular file. Raises ``Damaged`` for anything else, without waiting, and ``OSError``."""
    fd = open_at_once(path, os.O_RDONLY)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise Damaged(f"{path}: damaged: it is no regular file")


def open_at_once(path: str, flags: int) -> int:
    """``os.open``, but nothing except a lease on a regular file is waited for. Raises ``OSError``.

    Somebody may hold one, as a server does for its clients; the kernel ends it in some seconds (/proc/sys/fs/lease-break-time).
    """
    flags |= os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(path, flags | os.O_NONBLOCK)
    except BlockingIOError as error:
        # By its name it could be another thing by the time that it is opened again: by a descriptor, it can't.
        with contextlib.suppress(FileNotFoundError):  # no /proc
            found = os.open(path, os.O_PATH | os.O_CLOEXEC | flags & os.O_NOFOLLOW)
            try:
                if stat.S_ISREG(os.fstat(found).st_mode):
                    return os.open(f"/proc/self/fd/{found}", flags & ~os.O_NOFOLLOW)
            finally:
                os.close(found)
        raise error
