"""Processes that are killed when their parent ends, however it ends: a test that is killed leaves none behind.

A loader's worker looks now and then whether its parent is still the one that it had at first. One whose parent was killed before that first
look waits for ever.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def end_with_parent() -> None:
    """From now on the kernel kills this process when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def children_end_with_me() -> None:
    """From now on so are all that this process forks, and all that those fork."""
    parent = 0

    def before() -> None:
        nonlocal parent
        parent = os.getpid()

    def in_child() -> None:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(127)  # it ended before the line above

    os.register_at_fork(before=before, after_in_child=in_child)


def of_session(leader: int) -> list[int]:
    """The processes of that session that are not dead."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if session == str(leader) and state not in "ZX":
            found.append(int(stat.parent.name))
    return found
