"""Curves across a run's attempts: the values that its program told, and its steps against time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from job_wrapper.curves import NAMES, Point, read
from job_wrapper.store import told
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.timeline import Attempt

SHOWN = 600
"""Points of a curve, at most: more are not seen."""


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of a curve: one attempt's points without a gap. ``undone``: of steps that a later attempt did again."""

    epoch: int
    undone: bool
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Values under one name, oldest first."""

    name: str
    lines: tuple[Line, ...]
    broken: tuple[int, ...]
    """Steps at which the value was no finite number."""

    @property
    def points(self) -> list[Point]:
        """Those that count."""
        return [point for line in self.lines if not line.undone for point in line.points]


def curves(entries: Sequence[Entry], made: Sequence[Attempt]) -> list[Curve]:
    """By name, at most `NAMES`; of each at most about `SHOWN` points."""
    told: dict[str, dict[int, list[Point]]] = {}
    for entry in entries:
        for name, points in read(entry.body).items():
            if name in told or len(told) < NAMES:
                told.setdefault(name, {}).setdefault(entry.epoch, []).extend(points)
    undone_from = _undone_from(made)
    return [_curve(name, by_epoch, undone_from) for name, by_epoch in told.items()]


def _undone_from(made: Sequence[Attempt]) -> dict[int, int]:
    """By epoch, the last of its steps that a later attempt did not do again."""
    found: dict[int, int] = {}
    least = 1 << 63
    for one in reversed(made):
        found[one.epoch] = least
        least = min(least, one.restored_step or 0)
    return found


def _curve(name: str, by_epoch: dict[int, list[Point]], undone_from: dict[int, int]) -> Curve:
    lines: list[Line] = []
    broken: list[int] = []
    each = max(8, SHOWN // max(1, len(by_epoch)))
    for epoch, points in sorted(by_epoch.items()):
        ordered = sorted({point.step: point for point in points}.values(), key=lambda point: point.step)
        broken += [point.step for point in ordered if point.value is None]
        last = undone_from.get(epoch, 1 << 63)
        for piece in _pieces(thin(ordered, each), last):
            if piece[0].value is not None:
                lines.append(Line(epoch, piece[0].step > last, tuple(piece)))  # noqa: PERF401 - reads as it is done
    return Curve(name, tuple(lines), tuple(broken[:SHOWN]))


def _pieces(points: Sequence[Point], last: int) -> list[list[Point]]:
    """Neighbours together that are gaps or values alike, and up to ``last`` or after it alike."""
    found: list[list[Point]] = []
    for point in points:
        before = found[-1][-1] if found else None
        if before and (before.value is None, before.step > last) == (point.value is None, point.step > last):
            found[-1].append(point)
        else:
            found.append([point])
    return found


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most ``most``: of neighbours their mean, at the last one's step. A gap stays one."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    found = []
    for at in range(0, len(points), size):
        some = points[at : at + size]
        values = [point.value for point in some if point.value is not None]
        mean = sum(values) / len(values) if len(values) == len(some) else None
        found.append(Point(some[-1].time, some[-1].step, mean))
    return found


def steps(entries: Sequence[Entry], made: Sequence[Attempt]) -> list[Line]:
    """Steps against time: one line an attempt, from the step that it went on from; ``value`` is the step."""
    found = []
    each = max(8, SHOWN // max(1, len(made)))
    for one in made:
        points = [(one.resumed if one.resumed is not None else one.claimed, one.restored_step or 0)]
        for entry in entries:
            if entry.epoch != one.epoch:
                continue
            step = told.whole(entry.body.get("step"))
            if entry.kind is Kind.COMMIT and step is not None:
                points.append((entry.time, step))
            points += [(point.time, point.step) for curve in read(entry.body).values() for point in curve]
        ordered = sorted(set(points))
        if len(ordered) > 1:
            line = [Point(when, step, float(step)) for when, step in ordered]
            size = -(-len(line) // each)
            found.append(Line(one.epoch, False, (*line[:-1:size], line[-1])))
    return found
