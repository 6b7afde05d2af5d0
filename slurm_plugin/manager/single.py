"""One manager a state directory, and the private directory itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.errors import ConfigError

NAME = "manager.lock"


class LockTaken(ConfigError):
    """Another manager holds the lock. ``host`` is the machine it runs on as that calls itself; "" while it is not yet told."""

    def __init__(self, message: str, host: str) -> None:
        super().__init__(message)
        self.host = host


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that was taken: ``path``, the inode it had then, and the ``line`` that tells whose it is."""

    path: Path
    inode: int
    line: str

    def ours(self) -> bool:
        """Whether it still is. On shared storage a server may take a lock away from a machine that it has not heard of for long.

        The file is opened anew, so that the server is asked and not this machine's memory of it.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return os.fstat(descriptor).st_ino == self.inode and _line(descriptor) == self.line
        except OSError:
            return False
        finally:
            os.close(descriptor)


def prepare(state_dir: Path) -> None:
    """Make the directory (0700). Raises ``ConfigError`` if it can't be used."""
    with _usable(state_dir):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (state_dir / "requests").mkdir(mode=0o700, exist_ok=True)
        if state_dir.stat().st_uid == os.geteuid():
            state_dir.chmod(0o700)


@contextlib.contextmanager
def only_one(state_dir: Path) -> Iterator[Lock]:
    """Hold ``<state_dir>/manager.lock``; the kernel, or the server of shared storage, lets go of it however the process ends.

    Makes the directory as ``prepare`` does. Raises ``LockTaken`` if another manager holds the lock, ``ConfigError`` if the directory
    can't be used.
    """
    prepare(state_dir)
    path = state_dir / NAME
    with _usable(state_dir):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            # On NFS this is a lock at the server, so it holds among machines too.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            process, _, host = _line(descriptor).partition(" ")
            where = f"process {process or 'unknown'}" + (f" on {host}" if host else "")
            raise LockTaken(f"{path}: another manager runs already ({where}); only one may", host) from None
        line = f"{os.getpid()} {socket.gethostname()}"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{line}\n".encode(), 0)
        os.fsync(descriptor)
        yield Lock(path, os.fstat(descriptor).st_ino, line)
    finally:
        os.close(descriptor)


def _line(descriptor: int) -> str:
    return os.pread(descriptor, 512, 0).decode(errors="replace").strip()


@contextlib.contextmanager
def _usable(state_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"state_dir: {state_dir} can't be used: {error.strerror}; it must belong to the manager's user (SlurmUser)"
        ) from error
