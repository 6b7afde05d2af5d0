"""Notices from the node agent: a small file that it writes atomically and removes when the notice is withdrawn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from job_wrapper.notice.types import Notice

HEARTBEAT = "agent.alive"
"""Beside the notice's file: its time of change tells when the agent last looked."""
HEARTBEAT_SECONDS = 2.0
FRESH_SECONDS = 10.0


class FileWatcher:
    """Looks at the file's time of change, size and inode five times a second; reads it when one of them is new."""

    def __init__(self, path: str, *, interval: float = 0.2, log: Callable[[str], None] = lambda text: None) -> None:
        self._path = Path(path)
        self._interval = interval
        self._log = log
        self._seen: tuple[int, int, int] | None = None
        self._notice: Notice | None = None

    def watch(self, emit: Callable[[Notice | None], None], stopped: Callable[[float], bool]) -> None:
        """See ``Watcher``."""
        while not stopped(self._interval):
            self.look(emit)

    def look(self, emit: Callable[[Notice | None], None]) -> None:
        """Look once."""
        try:
            info = self._path.stat()
            mark = (info.st_mtime_ns, info.st_size, info.st_ino)
            if mark == self._seen:
                return
            notice = Notice.from_json(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self._seen = None
            if self._notice is not None:
                self._notice = None
                emit(None)
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError):
                return
            self._seen = mark
            self._log(f"{self._path}: can't be read as a notice: {error}; looking again when it changes")
            return
        self._seen = mark
        if notice != self._notice:
            self._notice = notice
            emit(notice)


def write_notice(path: Path, notice: Notice) -> None:
    """Put the notice there, whole or not at all, for all users of the node to read."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(notice.to_json() + "\n", encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)


def read_notice(path: Path) -> Notice | None:
    """The notice that stands there; None where there is none that can be read."""
    try:
        return Notice.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def beat(notice_file: Path) -> None:
    """Tell that the agent looks."""
    path = notice_file.with_name(HEARTBEAT)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.touch(mode=0o644)


def agent_alive(notice_file: str, now: float | None = None) -> bool:
    """Whether the node's agent has looked within the last seconds; then nobody else need ask the cloud."""
    try:
        changed = Path(notice_file).with_name(HEARTBEAT).stat().st_mtime
    except OSError:
        return False
    return abs((time.time() if now is None else now) - changed) < FRESH_SECONDS
