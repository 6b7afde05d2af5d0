"""A store that can't be reached, as a program under the wrapper meets it: training goes on, only its end and its start wait.

An ordinary save that meets an outage is told to the wrapper and logged; the wrapper asks again at its next interval. The final state is
saved by nobody later, and nothing begins without its checkpoint: these two wait for the store as long as ``--store-patience`` says, and
then end the program with ``StoreAway``, upon which the wrapper brings the job back. Without a wrapper nobody would ask again, so there
a save that fails is always raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from job_wrapper.errors import StoreAway, StoreError, may_pass
from job_wrapper.store.decided_put import Patience, patiently

if TYPE_CHECKING:
    from job_wrapper.checkpoint.committer import Committer

log = logging.getLogger("spotburst")

LONGEST = 15.0
"""Seconds between two tries."""
LOOK = 0.2
"""Seconds between looks at what the wrapper says meanwhile."""

T = TypeVar("T")


def waited_out(committer: Committer, error: BaseException | None) -> bool:
    """Whether training goes on after a save that ended with ``error``."""
    return error is not None and committer.patience > 0 and may_pass(error)


def read_patiently(committer: Committer, read: Callable[[], T]) -> T:
    """``read()``, tried again while the store is away. Raises ``StoreAway`` when patience ends, and what ``read`` raises."""
    patience = Patience(seconds=committer.patience, first=1.0, longest=LONGEST)
    try:
        return patiently(read, patience, lambda error: log.warning("the store is waited for: %s", error))
    except StoreError as error:
        if not waited_out(committer, error):
            raise
        raise _away(committer, error) from error


class Waiting:
    """Pauses between the tries of one save that has to be made before the program ends."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._until = time.monotonic() + committer.patience
        self._pause = 1.0

    def pause(self, error: BaseException) -> None:
        """Until the next try is due, or the wrapper has something to say. Raises ``StoreAway`` when patience ends."""
        now = time.monotonic()
        if now >= self._until:
            raise _away(self._committer, error) from error
        until = min(self._until, now + self._pause)
        self._pause = min(LONGEST, self._pause * 2)
        while time.monotonic() < until and not self._committer.attention:
            time.sleep(LOOK)


def _away(committer: Committer, error: BaseException) -> StoreAway:
    return StoreAway(
        f"the store did not come back within {committer.patience:.0f} s (--store-patience); the last commit stands. {error}"
    )
