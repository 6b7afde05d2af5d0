"""What is left on a disk after the power went: only what was synced, in the worst case that POSIX allows."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

from tests.store.faulty import Crash

_CHANGES = frozenset({"open", "write", "fsync", "link", "rename", "unlink", "mkdir", "rmdir"})


class Disk:
    """Stands in for the ``os`` module of ``posix``, and remembers what is durable below ``root``, which is empty.

    A file's bytes are durable as they were at its last fsync, a directory's names as they were at its own. The power goes before the
    ``at``-th call that changes something; 0: never.
    """

    def __init__(self, root: Path, *, ignored: str = "") -> None:
        self.calls = 0
        self.at = 0
        self._root = root
        self._ignored = ignored
        self._dead = False
        self._lock = threading.Lock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {root.stat().st_ino: {}}

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in _CHANGES:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.calls += 1
                self._dead = self._dead or self.calls == self.at
                if self._dead:
                    raise Crash
                return self._sync(args[0]) if name == "fsync" else real(*args, **kwargs)

        return call

    def _sync(self, fd: int) -> None:
        info = os.fstat(fd)
        folder = stat.S_ISDIR(info.st_mode)
        if self._ignored == ("folders" if folder else "files"):
            return
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if folder:
            self._names[info.st_ino] = {name: (path / name).lstat().st_ino for name in os.listdir(path)}  # noqa: PTH208
        else:
            self._contents[info.st_ino] = path.read_bytes()

    def after_the_power_went(self, target: Path, *, names_kept: bool) -> None:
        """Lay out below ``target`` what is left. ``names_kept``: names are all there, synced or not, and what was not synced is empty."""
        self._copy(self._root, self._root.stat().st_ino, target, names_kept)

    def _copy(self, folder: Path, number: int, target: Path, names_kept: bool) -> None:
        target.mkdir()
        now = {path.name: path.lstat().st_ino for path in folder.iterdir()} if folder.is_dir() else {}
        names = now if names_kept else self._names.get(number, {})
        for name, inner in names.items():
            if inner in self._contents:
                (target / name).write_bytes(self._contents[inner])
            elif inner in self._names or (folder / name).is_dir():
                self._copy(folder / name, inner, target / name, names_kept)
            else:
                (target / name).write_bytes(b"")
