"""Whether a folder is still the one that it was.

A file system that goes away leaves its bare mount point, or another file system comes to lie over it. To whoever looks then, no run has
ever been there: work would begin from nothing, and be saved where nobody finds it.
"""

from __future__ import annotations

import os
import stat

from job_wrapper.errors import Damaged
from job_wrapper.store.paths import PROOF_KEY
from job_wrapper.store.posix_errors import gone
from job_wrapper.store.regular import open_regular

MOST = 4096
"""Bytes of a mark that are looked at: it has far fewer."""


class SameFolder:
    """Knows the folder by its device and number, and, since both may be others once it was mounted anew, by what its mark says."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen = self._standing()
        self.mark = self._read()

    def learn(self) -> None:
        """Its mark as it is now. Whoever may just have marked it calls this. Raises ``StoreError`` where it does not stand any more."""
        mark = self._read()
        if not self.stands():  # after it was read: else it could be the mark of what has come in its place meanwhile
            raise gone(self._root)
        self.mark = mark

    def stands(self) -> bool:
        """False where it is away or another one."""
        now = self._standing()
        if now is None:
            return False
        if now != self._seen:
            if not self.mark or self._read() != self.mark:
                return False
            self._seen = now
        elif not self.mark:  # marked since it was opened, by whoever proved it
            mark = self._read()
            if self._standing() == now:
                self.mark = mark
        return True

    def _standing(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._root)  # noqa: PTH116
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None

    def _read(self) -> str:
        """What the mark says; "" where there is none, or where it can't be read."""
        try:
            with open(open_regular(f"{self._root}/{PROOF_KEY}"), "rb", buffering=0) as file:  # noqa: PTH123
                return file.read(MOST).decode("utf-8", "replace")
        except (OSError, Damaged):
            return ""
