"""Opening what lies in a folder that others may write to as well, and nothing that a link put there leads to.

Between a scan and the opening of what it found, a file or a folder may be replaced by a link to a file that only this user can read, or by a pipe,
which would hold up whoever opens it. ``O_NOFOLLOW`` looks at the last step of a path alone, so the kernel is asked where it led.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from job_wrapper.store.regular import open_at_once


class Within:
    """Opens what is in the folder ``root``. Raises ``OSError`` where that can't be opened, as all methods do.

    The kernel's name of it need not be the one that was given (another spelling, where a file system takes several); what is in it is
    compared with the kernel's.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._real = _led_to(fd)
        finally:
            os.close(fd)

    def file(self, path: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a regular file, as ``open`` takes it of an ``opener``. ``path`` begins with the root's."""
        return self._open(path, flags, stat.S_ISREG)

    def folder(self, path: str) -> int:
        """A descriptor of a folder."""
        return self._open(path, os.O_RDONLY | os.O_DIRECTORY, stat.S_ISDIR)

    def _open(self, path: str, flags: int, is_kind: Callable[[int], bool]) -> int:
        follow = 0 if path == self._root else os.O_NOFOLLOW
        try:
            fd = open_at_once(path, flags | follow)
        except OSError as error:
            raise (_replaced(path) if error.errno in (errno.ELOOP, errno.ENOTDIR) else error) from None
        if is_kind(os.fstat(fd).st_mode) and self._led_right(fd, path):
            return fd
        os.close(fd)
        raise _replaced(path)

    def _led_right(self, fd: int, path: str) -> bool:
        led = _led_to(fd)
        wanted = (self._real or "") + path[len(self._root) :]
        # A file that was replaced right now by one of its name is still the one that was there.
        return self._real is None or led is None or led in (wanted, f"{wanted} (deleted)")


def _led_to(fd: int) -> str | None:
    """Where an open file lies; None where the kernel does not tell (no /proc)."""
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return None


def _replaced(path: str) -> OSError:
    return OSError(
        errno.ELOOP, "it, or a folder above it, was replaced by a link or the like while it was being saved", path
    )
