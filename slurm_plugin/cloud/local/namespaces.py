"""The few system calls that Python 3.10 does not offer. Standard library only."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces of the given kinds for new ones. Raises ``OSError``."""
    if _libc.unshare(flags) != 0:
        _fail("unshare")


def setns(fd: int, flags: int) -> None:
    """Join the namespace that the descriptor is of; for a process namespace, the children to come do. Raises ``OSError``."""
    if _libc.setns(fd, flags) != 0:
        _fail("setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2). Raises ``OSError``."""
    words = [os.fsencode(w) if w else None for w in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) if options else None) != 0:
        _fail(f"mount {target}")


def set_host_name(name: str) -> None:
    """sethostname(2). Raises ``OSError``."""
    encoded = name.encode("ascii")
    if _libc.sethostname(encoded, len(encoded)) != 0:
        _fail("sethostname")


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")
