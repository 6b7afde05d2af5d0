"""Lines of the benchmark table: each figure is measured in turns with its reference, so that a busy machine slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 5


@dataclass(frozen=True)
class Line:
    """``value`` and ``reference`` in seconds, or bytes; ``bar`` is the highest ratio allowed, or None where there is none."""

    what: str
    value: float
    against: str
    reference: float
    bar: float | None
    bytes: bool = False

    @property
    def ratio(self) -> float:
        """How many times the reference."""
        return self.value / self.reference

    def __str__(self) -> str:
        bar = "-" if self.bar is None else f"<= {self.bar:g} {'met' if self.ratio <= self.bar else 'MISSED'}"
        text = size_text if self.bytes else time_text
        return f"{self.what:54} {text(self.value):>10}  {self.ratio:7.2f} x {self.against:30} {text(self.reference):>10}  {bar}"


def time_text(seconds: float) -> str:
    """``"12.3 ms"``."""
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-4 else f"{seconds * 1000:.1f} ms"


def size_text(size: float) -> str:
    """``"12.3 MiB"``."""
    return f"{size / (1 << 20):.1f} MiB"


def timed(act: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def in_turns(*acts: Callable[[], float], rounds: int = ROUNDS) -> list[float]:
    """Medians of what each returns, taken in turns."""
    times: list[list[float]] = [[] for _ in acts]
    for _ in range(rounds):
        for found, act in zip(times, acts, strict=True):
            found.append(act())
    return [statistics.median(found) for found in times]
