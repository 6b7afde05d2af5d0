"""Not the same act in every pass: what was just done is given time to show, what was refused is tried again ever more seldom."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

SETTLE = 2.0
"""Seconds that a successful act has before it is done again; then twice as long, and so on."""
LONGEST = 60.0
FORGET = 3.0
"""An act that was not asked for during this many seconds starts anew."""


@dataclass(slots=True)
class _Memory:
    done: float
    wait: float
    wanted: float


class Damper:
    """By action, since actions are values. Deciding looks at levels, so a wanted action is asked for in every pass until it shows."""

    def __init__(self) -> None:
        self._acts: dict[Hashable, _Memory] = {}

    def due(self, action: Hashable, now: float) -> bool:
        """Whether to do it now. Notes that it was wanted."""
        memory = self._acts.get(action)
        if memory is None:
            return True
        gap, memory.wanted = now - memory.wanted, now
        # Less than nothing: the clock was set back, and until it has caught up again nothing would be done.
        if gap < 0 or gap > FORGET + memory.wait / 2:
            del self._acts[action]
            return True
        return now - memory.done >= memory.wait

    def done(self, action: Hashable, now: float) -> None:
        """It was tried, whatever came of it."""
        memory = self._acts.get(action)
        wait = SETTLE if memory is None else min(LONGEST, memory.wait * 2)
        self._acts[action] = _Memory(now, wait, now)

    def forget_old(self, now: float) -> None:
        """Drop what was not wanted for long."""
        for action in [a for a, m in self._acts.items() if now - m.wanted > 2 * LONGEST]:
            del self._acts[action]
