"""Rank 0 tells that it is still at its restore: the other ranks wait for it as long as that takes, and not for one that is gone.

Numbered objects beside the epoch's data (``gang``), each put once. A restore that takes less than ``PAUSE`` puts none.
"""

from __future__ import annotations

import threading
from types import TracebackType

from job_wrapper.errors import ObjectMissing, StoreError
from job_wrapper.store.codec import seal
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.paths import gang_prefix

PAUSE = 30.0
"""Seconds between two of them. A follower waits for ten minutes and more."""


def _key(run: str, epoch: int, number: int) -> str:
    return f"{gang_prefix(run, epoch)}restoring-{number:08d}.json"


def is_there(store: ObjectStore, key: str) -> bool:
    """Whether that object is there, whatever it holds. Raises the store's errors."""
    try:
        store.get(key)
    except ObjectMissing:
        return False
    return True


class Restoring:
    """While this is entered, rank 0 tells that it restores. What can't be told is told the next time: the restore itself hears of its store."""

    def __init__(self, store: ObjectStore, run: str, epoch: int) -> None:
        self._store, self._run, self._epoch = store, run, epoch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="spotburst-restoring", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _tell(self) -> None:
        number = 0
        while not self._over.wait(PAUSE):
            try:
                self._store.put(_key(self._run, self._epoch, number), seal("restoring", {}))
            except StoreError:
                continue
            number += 1


class Heard:
    """What a follower has heard of that. Raises the store's errors."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self._store, self._run = store, run
        self._epoch, self._next = 0, 0

    def anew(self, epoch: int) -> bool:
        """Whether rank 0 of that epoch has told something since this was asked last; yes where another epoch was asked of then."""
        if epoch != self._epoch:
            self._epoch, self._next = epoch, 0
            return True
        before = self._next
        while is_there(self._store, _key(self._run, epoch, self._next)):
            self._next += 1
        return self._next > before
