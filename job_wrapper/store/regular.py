"""Opening a stored file for reading where others may have put something else in its place.

A pipe would hold up whoever opens it until somebody writes, and a device may have no end. In a folder of many users the manager reads what
each of them lays there, so neither is ever waited for.
"""

from __future__ import annotations

import os
import stat

from job_wrapper.errors import Damaged

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: str) -> int:
    """A descriptor of a regular file. Raises ``Damaged`` for anything else, without waiting, and ``OSError``."""
    try:
        fd = os.open(path, _FLAGS | os.O_NONBLOCK)
    except BlockingIOError:
        # Somebody holds a lease on it, as a server does for its clients; the kernel ends it within seconds.
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - the innermost loop of a load
            raise
        fd = os.open(path, _FLAGS)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise Damaged(f"{path}: damaged: it is no regular file")
