"""Watching a cloud: look at its source again and again, and tell what is new. What is told is decided by ``Standing``, which is pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from job_wrapper.notice.http import Stopped
from job_wrapper.notice.types import TAKES_AWAY, Notice

MISSES = 3
"""Looks in a row that must find nothing before a notice counts as withdrawn: one 404 between two notices is no withdrawal."""
SAY_AGAIN = 60.0
"""Seconds between two lines about a source that fails in ever new ways."""
REMEMBERED = 256
"""Warnings whose ids are kept."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found. ``complete``: all that tells of a loss has answered, so what is not among ``notices`` does not stand."""

    notices: tuple[Notice, ...] = ()
    complete: bool = True
    faults: tuple[str, ...] = ()


class Source(Protocol):
    """A cloud's metadata service. ``pause``: seconds between the starts of two looks."""

    provider: str
    pause: float

    def look(self, clock: Callable[[], float], stopped: Stopped) -> Look:
        """All that stands now. Any exception means that nothing is known. ``stopped`` tells when to break off.

        A look may wait for a change: ``clock`` (Unix seconds) is asked when the answer has come.
        """
        ...

    def afresh(self) -> None:
        """The next look must not wait for a change."""
        ...


class Standing:
    """The notices that stand, from one look to the next. ``known`` was told before, by a watcher that this one takes over from."""

    def __init__(self, known: Notice | None = None) -> None:
        self.current = known if known is not None and known.kind in TAKES_AWAY else None
        self._warned = {known.source_id: None} if known is not None and self.current is None else {}
        self._misses = 0

    def take(self, look: Look) -> list[Notice | None]:
        """What is to be told: new notices, and None for a withdrawal. Losses come before warnings and silence them."""
        said: list[Notice | None] = []
        losses = sorted((n for n in look.notices if n.kind in TAKES_AWAY), key=_when)
        current = self.current
        if losses:
            self._misses = 0
            same = next((n for n in losses if current is not None and n.source_id == current.source_id), None)
            if (
                current is None
                or (same is None and look.complete)
                or (losses[0] is not same and _sooner(losses[0], current))
            ):
                self.current = losses[0]
                said.append(self.current)
            elif same is not None and _sooner(same, current):
                # The same event, and less time than was told: it arrived when it was first told of.
                self.current = replace(current, deadline=same.deadline, text=same.text)
                said.append(self.current)
        elif current is not None and look.complete:
            self._misses += 1
            if self._misses >= MISSES:
                self.current, self._misses = None, 0
                said.append(None)
        for notice in look.notices:
            if notice.kind not in TAKES_AWAY and notice.source_id not in self._warned:
                self._warned[notice.source_id] = None
                if len(self._warned) > REMEMBERED:
                    del self._warned[next(iter(self._warned))]
                if self.current is None:
                    said.append(notice)
        return said


def _when(notice: Notice) -> float:
    return math.inf if notice.deadline is None else notice.deadline


def _sooner(one: Notice, other: Notice) -> bool:
    """By a second at least: sources round."""
    return _when(one) < _when(other) - 1.0


class CloudWatcher:
    """See ``Watcher``. While ``asleep()`` nothing is asked: somebody else on the node watches."""

    def __init__(
        self,
        source: Source,
        *,
        asleep: Callable[[], bool] = lambda: False,
        known: Notice | None = None,
        log: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.source = source
        self.looks = 0
        """Looks that are over, well or ill."""
        self._asleep = asleep
        self._log = log
        self._clock = clock
        self._standing = Standing(known)
        self._fault, self._said = "", -math.inf

    def watch(self, emit: Callable[[Notice | None], None], stopped: Stopped) -> None:
        """See ``Watcher``. May be called again after it has returned, and goes on from there."""
        self.source.afresh()
        due = 0.0
        while not stopped(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self.source.pause
            if self._asleep():
                self.source.afresh()
                continue
            try:
                look = self.source.look(self._clock, stopped)
            except Exception as error:
                # No answer, or nonsense of whatever kind, says nothing: neither a notice nor its withdrawal.
                self.source.afresh()
                look = Look(complete=False, faults=(f"{type(error).__name__}: {error}",))
            if not (look.faults and stopped(0.0)):
                self._say(look.faults)
            for notice in self._standing.take(look):
                emit(notice)
            self.looks += 1

    def _say(self, faults: tuple[str, ...]) -> None:
        """Once a fault, not at every look."""
        fault = "; ".join(faults)[:300]
        if fault and fault != self._fault and (not self._fault or time.monotonic() - self._said > SAY_AGAIN):
            self._said = time.monotonic()
            self._log(f"{self.source.provider} metadata: {fault}; looking again")
        self._fault = fault
