"""What the embedded cloud keeps on disk, and how a process is told from another one with the same number. Standard library only.

::

    <state_dir>/local/lock                 one writer at a time for launches and faults
    <state_dir>/local/network.json         bridge and subnet, for taking them down later
    <state_dir>/local/faults.json          capacity limits, refusals to come, linger
    <state_dir>/local/instances/<id>/
        instance.json   never changes: what was asked for, and the address
        control.json    what is to happen to the machine (a reclaim, the end); the machine reads it
        lock            held by the process that makes and keeps the machine
        machine.json    written once, when the machine's process 1 exists
        booted.json     written once, when slurmd was started
        ended.json      written once, when it is over
        *.log           output of the machine, its slurmd and its agent
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Replace the file as a whole, so that no reader ever sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def write_json_once(path: Path, data: Any) -> bool:
    """Create the file unless it exists; whether this call created it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None where there is no file or it holds nothing of ours."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock. The kernel lets go of it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def try_lock(path: Path) -> int | None:
    """Take a file lock without waiting: the open descriptor, or None when someone holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def boot_id() -> str:
    """Changes with each boot of the host: process numbers and start times mean nothing across it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told from a later one with the same number by its start time (clock ticks since boot) and the boot."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now."""
        started = start_time(pid)
        return None if started is None else cls(pid, started, boot_id())

    @classmethod
    def from_dict(cls, data: Any) -> Process | None:
        """As ``to_dict`` gave it; None for anything else."""
        try:
            return cls(int(data["pid"]), int(data["started"]), str(data["boot"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"pid": self.pid, "started": self.started, "boot": self.boot}

    def alive(self) -> bool:
        """Whether it, or for a machine's process 1 anything below it, still runs."""
        fd = self._open()
        if fd is None:
            return False
        os.close(fd)
        return True

    def send(self, number: int) -> bool:
        """Send a signal to exactly this process; whether it was there."""
        fd = self._open()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def wait(self, timeout: float) -> bool:
        """Wait until it has ended, at most ``timeout`` seconds; whether it has."""
        fd = self._open()
        if fd is None:
            return True
        try:
            return bool(select.select([fd], [], [], timeout)[0])
        finally:
            os.close(fd)

    def end(self, *, patience: float, hard: bool = True) -> bool:
        """SIGTERM, then after ``patience`` seconds SIGKILL; whether it is gone."""
        self.send(signal.SIGTERM)
        if self.wait(patience) or not hard:
            return not self.alive()
        self.send(signal.SIGKILL)
        return self.wait(5.0)

    def _open(self) -> int | None:
        """A pidfd of the living process. It becomes readable when the whole process has ended, for a process 1 after all others."""
        if self.boot != boot_id():
            return None
        try:
            fd = os.pidfd_open(self.pid)
        except OSError as error:
            # The number may be a thread's now, which is no process: by the kernel's age EINVAL or ENOENT.
            if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
                return None
            raise
        if start_time(self.pid) != self.started or select.select([fd], [], [], 0)[0]:
            os.close(fd)
            return None
        return fd


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, clock ticks since boot; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text[text.rindex(")") + 2 :].split()[19])


def now() -> float:
    """Unix seconds."""
    return time.time()
