"""Waiting when a cloud says "too many requests": one pause for all callers of one account, not one a caller.

Callers that each retry by themselves keep the limit exceeded. Here the first refusal opens a pause that everybody keeps; it doubles with
each further refusal and is forgotten bit by bit with each success. Pauses vary at random, so that callers do not come back together.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")
LONGEST_WISH = 600.0
"""Seconds: a cloud that wished for more, in error, would be out of use for as long."""


class Backoff:
    """Shared by all threads that call one provider. Times in seconds by a monotonic clock."""

    def __init__(
        self,
        *,
        first: float = 0.5,
        longest: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._first, self._longest = first, longest
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._lock = threading.Lock()
        self._pause = 0.0
        self._until = float("-inf")

    def left(self) -> float:
        """How long nobody is to call; 0 when calls may go out."""
        with self._lock:
            return max(0.0, self._until - self._clock())

    def throttled(self, retry_after: float | None = None) -> None:
        """The cloud refused a call for its rate. ``retry_after``: its own wish in seconds, where it gave one; heeded up to ``LONGEST_WISH``.

        Refusals that come while the pause is on belong to calls that were under way, and do not lengthen it.
        """
        with self._lock:
            now = self._clock()
            if now >= self._until:
                self._pause = min(self._longest, max(self._first, self._pause * 2))
            pause = self._pause * (0.5 + 0.5 * self._jitter())
            self._until = max(self._until, now + max(pause, min(retry_after or 0.0, LONGEST_WISH)))

    def succeeded(self) -> None:
        """A call went through: the next pause begins a quarter shorter."""
        with self._lock:
            self._pause = self._pause * 0.75 if self._pause > self._first else 0.0

    def call(
        self,
        work: Callable[[], Answer],
        is_throttle: Callable[[Exception], bool],
        patience: float = 5.0,
    ) -> Answer:
        """Do ``work``, waiting for the shared pause before each try, for at most ``patience`` seconds in all.

        Raises what ``work`` raised last, or ``Paused``, without a call, where the pause is longer than the patience.
        """
        until = self._clock() + patience
        while True:
            pause = self.left()
            if self._clock() + pause > until:
                raise Paused(pause)
            if pause:
                self._sleep(pause)
                continue
            try:
                answer = work()
            except Exception as error:
                if not is_throttle(error):
                    raise
                self.throttled()
                if self._clock() + self.left() > until:
                    raise
                continue
            self.succeeded()
            return answer


class Paused(Exception):
    """Nothing was sent: the cloud asked for a pause that is longer than this caller may wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"calls pause for {seconds:.1f} s more, since the cloud refused earlier ones for their rate")
        self.seconds = seconds
