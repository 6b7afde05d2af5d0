"""Put-if-absent with a certain outcome: an answer that was lost is found out by reading back (DESIGN §3)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from job_wrapper.errors import ObjectMissing, StoreError, StoreRefused, may_pass
from job_wrapper.store.io_types import ObjectStore, Put


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try again: ``seconds`` in all, waiting from ``first`` to ``longest`` seconds, doubling, with jitter."""

    seconds: float = 60.0
    first: float = 0.05
    longest: float = 5.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


_T = TypeVar("_T")


def patiently(
    act: Callable[[], _T], patience: Patience, told: Callable[[StoreError], object] = lambda error: None
) -> _T:
    """``act()``, tried again while the store can't be reached. What trying again won't help (refused, damaged, missing) is raised at once.

    ``told`` is called once, with the first error that is waited out.
    """
    deadline = patience.now() + patience.seconds
    first = True
    wait = patience.first
    while True:
        try:
            return act()
        except StoreError as error:
            if not may_pass(error) or patience.now() >= deadline:
                raise
            if first:
                told(error)
                first = False
        patience.sleep(wait * (0.5 + random.random()))  # noqa: S311
        wait = min(wait * 2, patience.longest)


def decided_put(store: ObjectStore, key: str, data: bytes, patience: Patience) -> bytes | None:
    """Create ``key`` with ``data``. None: it holds exactly ``data`` now. Bytes: what another put there.

    Whatever an attempt answered, also "exists" (clients repeat a request by themselves and meet their own object), the object itself
    decides. Raises ``StoreRefused`` at once, ``StoreError`` when patience ends: then it is undecided, and the object may still appear.
    """
    deadline = patience.now() + patience.seconds
    wait = patience.first
    while True:
        error: StoreError | None = None
        try:
            if store.put_if_absent(key, data) is Put.CREATED:
                return None
        except StoreRefused:
            raise
        except StoreError as failure:
            error = failure
        try:
            found = store.get(key)
            return None if found == data else found
        except ObjectMissing as missing:
            # Not there: never arrived, or (after "exists") not shown yet. Putting again is safe in both cases.
            error = error or missing
        except StoreRefused:
            raise
        except StoreError as failure:
            error = failure
        if patience.now() >= deadline:
            raise StoreError(f"{store.uri}/{key}: can't tell whether this log entry was written: {error}") from error
        patience.sleep(wait * (0.5 + random.random()))  # noqa: S311
        wait = min(wait * 2, patience.longest)
