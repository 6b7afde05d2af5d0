"""What a program tells of its training, such as its loss: thinned here, and kept in the run's log for ``spotburst report``.

Each commit's log entry carries the points since the one before, so a curve is as durable as the checkpoints, a fenced attempt adds nothing
to it, and of a job on several nodes there is one: that of the rank whose wrapper commits. What was told after the last commit stands in the
entry that ends the attempt; an attempt that vanishes takes with it only points of steps that are done again.

An entry holds at most `POINTS` points of each of at most `NAMES` names, so its size does not grow with the number of steps.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from job_wrapper.protocol import is_count

BODY = "curves"
"""Key of a log entry's body: by name, points as ``[Unix seconds, step, value or null]``, oldest first."""
POINTS = 64
NAMES = 8
EVERY = 1.0
"""Seconds for which a program's values are gathered before they are told."""
_NAME = re.compile(r"[\w][\w./@ -]{0,63}", re.ASCII)


class Point(NamedTuple):
    """``value`` is the mean of what was told up to ``step`` since the point before; None where one of it was no finite number."""

    time: float
    step: int
    value: float | None


class _Bucket:
    __slots__ = ("broken", "count", "step", "sum", "time")

    def __init__(self) -> None:
        self.time, self.step, self.sum, self.count, self.broken = 0.0, 0, 0.0, 0, False

    def add(self, when: float, step: int, total: float, count: int, broken: bool) -> None:
        self.time, self.step = when, step
        self.sum, self.count, self.broken = self.sum + total, self.count + count, self.broken or broken

    @property
    def value(self) -> float | None:
        mean = self.sum / self.count if self.count else math.nan
        return None if self.broken or not math.isfinite(mean) else float(f"{mean:.6g}")


class _Curve:
    """Once there are more than `POINTS`, neighbours become one point, and each further point stands for twice as many values."""

    def __init__(self) -> None:
        self.buckets: list[_Bucket] = []
        self._stride = 1

    def add(self, when: float, step: int, value: float) -> None:
        if self.buckets and step < self.buckets[-1].step:
            return
        if not self.buckets or self.buckets[-1].count >= self._stride:
            if len(self.buckets) == POINTS:
                self._halve()
            self.buckets.append(_Bucket())
        finite = math.isfinite(value)
        self.buckets[-1].add(when, step, value if finite else 0.0, 1, not finite)

    def _halve(self) -> None:
        for first, second in zip(self.buckets[::2], self.buckets[1::2], strict=True):
            first.add(second.time, second.step, second.sum, second.count, second.broken)
        self.buckets, self._stride = self.buckets[::2], 2 * self._stride

    def forget(self, step: int) -> None:
        self.buckets = [bucket for bucket in self.buckets if bucket.step > step]
        self._stride = 1 if not self.buckets else self._stride


class Curves:
    """What one attempt's program has told and its log does not hold yet. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._curves: dict[str, _Curve] = {}

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take in a ``metrics`` message. What is no step, name or number is passed over, as are names after the first `NAMES`."""
        step, values = message.get("step"), message.get("values")
        if not is_count(step) or not isinstance(values, dict):
            return
        now = round(self._clock(), 1)
        with self._lock:
            for name, value in values.items():
                number = math.nan if value is None else value
                if isinstance(number, bool) or not isinstance(number, int | float) or not _NAME.fullmatch(name):
                    continue
                if name in self._curves or len(self._curves) < NAMES:
                    self._curves.setdefault(name, _Curve()).add(now, step, _number(number))

    def told(self) -> dict[str, Any]:
        """For a log entry's body: the points so far under `BODY`; empty where there are none."""
        with self._lock:
            made = {
                name: [[b.time, b.step, b.value] for b in curve.buckets]
                for name, curve in self._curves.items()
                if curve.buckets
            }
        return {BODY: made} if made else {}

    def written(self, told: Mapping[str, Any]) -> None:
        """What ``told`` gave is in the log."""
        with self._lock:
            for name, points in told.get(BODY, {}).items():
                self._curves[name].forget(points[-1][1])


def read(body: Mapping[str, Any]) -> dict[str, list[Point]]:
    """The points in a log entry's body, by name. What has not their form is passed over: the store may be written by others. Pure."""
    told = body.get(BODY)
    found: dict[str, list[Point]] = {}
    for name, points in list(told.items())[:NAMES] if isinstance(told, dict) else ():
        if isinstance(points, list) and _NAME.fullmatch(name):
            good = [Point(*p) for p in points[:POINTS] if _is_point(p)]
            if good:
                found[name] = good
    return found


def _is_point(point: Any) -> bool:
    if not isinstance(point, list) or len(point) != 3:
        return False
    when, step, value = point
    return _finite(when) and is_count(step) and (value is None or _finite(value))


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond what a float holds
        return math.inf


class Gathered:
    """The program's side: values as means over `EVERY` seconds, so that a program may log at each step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._told = clock, float("-inf")
        self._step = 0
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, step: int, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The message that is due now, or None. ``values``: numbers, or what ``float`` takes. Raises ``TypeError`` or ``ValueError``."""
        self._step = step
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + float(value), count + 1
        return self.due() if self._clock() - self._told >= EVERY else None

    def due(self) -> dict[str, Any] | None:
        """All that is gathered, as a message; None where that is nothing."""
        if not self._sums:
            return None
        self._told = self._clock()
        sums, self._sums = self._sums, {}
        means = {name: total / count for name, (total, count) in sums.items()}
        values = {name: mean if math.isfinite(mean) else None for name, mean in means.items()}
        return {"type": "metrics", "step": self._step, "values": values}
