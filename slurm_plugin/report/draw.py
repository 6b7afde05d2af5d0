"""Pictures as numbers: where each bar, mark, line and tick stands, in the units of an SVG. Pure; the template only writes them down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_plugin.cli.output import duration
from slurm_plugin.report.curves import Curve, Line
from slurm_plugin.report.record import Doing, Mark, Record, Row

WIDTH = 960.0
LEFT, RIGHT = 132.0, 20.0
ROW = 26.0
TOP, BOTTOM = 12.0, 34.0
ROWS_SHOWN = 60
"""Attempts on the time line: of more, the newest."""
MARKS_SHOWN = 150
"""Commits of one attempt that have a mark each; of more, evenly chosen ones."""
CURVE_WIDTH, CURVE_HEIGHT = 460.0, 220.0
CURVE_LEFT = 64.0

_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True, slots=True)
class Tick:
    """``at``: its place along its axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A span of an attempt. ``begin`` and ``end`` in Unix seconds, for whoever checks the picture."""

    doing: str
    x: float
    width: float
    begin: float
    end: float
    title: str


@dataclass(frozen=True, slots=True)
class Sign:
    """A mark."""

    kind: str
    x: float
    time: float
    title: str


@dataclass(frozen=True, slots=True)
class BarRow:
    """One attempt: ``y`` is its top."""

    y: float
    label: str
    title: str
    bars: tuple[Bar, ...]
    signs: tuple[Sign, ...]


@dataclass(frozen=True, slots=True)
class TimeLine:
    """``left`` and ``right`` stand for ``begin`` and ``end``."""

    width: float
    height: float
    left: float
    right: float
    begin: float
    end: float
    rows: tuple[BarRow, ...]
    ticks: tuple[Tick, ...]
    left_out: int
    """Attempts older than those shown."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through ``points``, as SVG has them; of one point a dot."""

    points: str
    undone: bool
    dot: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Plot:
    """A curve with its axes. ``against``: what is across, in words."""

    title: str
    summary: str
    against: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    paths: tuple[Stroke, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    broken: tuple[float, ...]
    """Places of values that were no finite number."""


def time_line(record: Record) -> TimeLine:
    """All attempts under each other, over the run's time."""
    rows = record.rows[-ROWS_SHOWN:]
    begin = record.begin if len(rows) == len(record.rows) else rows[0].attempt.started
    end = max(record.end, begin + 1.0)
    left, right = LEFT, WIDTH - RIGHT

    def x(when: float) -> float:
        return left + (min(max(when, begin), end) - begin) / (end - begin) * (right - left)

    drawn = tuple(_row(row, TOP + ROW * index, begin, x) for index, row in enumerate(rows))
    ticks = tuple(Tick(x(begin + at), _short(at)) for at in _times(end - begin))
    height = TOP + ROW * len(rows) + BOTTOM
    return TimeLine(WIDTH, height, left, right, begin, end, drawn, ticks, len(record.rows) - len(rows))


def _row(row: Row, y: float, begin: float, x: Callable[[float], float]) -> BarRow:
    one = row.attempt
    bars = tuple(
        Bar(s.doing.value, x(s.begin), max(x(s.end) - x(s.begin), 0.0), s.begin, s.end, _said(s.doing, s.seconds))
        for s in row.spans
        if s.end > begin
    )
    signs = tuple(Sign(m.kind, x(m.time), m.time, _mark(m, m.time - begin)) for m in _fewer(row.marks))
    worked = duration(row.seconds(Doing.WORKS))
    return BarRow(y, f"{one.epoch} · {one.node}", f"attempt {one.epoch} on {one.node}: worked {worked}", bars, signs)


def _fewer(marks: Sequence[Mark]) -> list[Mark]:
    commits = [m for m in marks if m.kind == "commit"]
    size = -(-len(commits) // MARKS_SHOWN) or 1
    return sorted([*commits[::-size], *(m for m in marks if m.kind != "commit")], key=lambda m: m.time)


def _said(doing: Doing, seconds: float) -> str:
    words = {
        Doing.WAITS: "waited",
        Doing.STARTS: "started and restored",
        Doing.WORKS: "worked",
        Doing.LOST: "worked, and lost it",
        Doing.LEAVES: "was requeued within",
        Doing.SILENT: "vanished at some moment within",
    }
    return f"{words[doing]} {duration(seconds)}"


def _mark(mark: Mark, after: float) -> str:
    words = {"urgent": "urgent commit", "damaged": "a checkpoint could not be restored"}
    step = "" if mark.step is None else f" of step {mark.step}"
    return f"{words.get(mark.kind, mark.kind)}{step}, after {duration(after)}"


def curve_plot(curve: Curve) -> Plot | None:
    """Values by step; None where there is none to draw."""
    points = [(float(p.step), p.value) for line in curve.lines for p in line.points if p.value is not None]
    if not points:
        return None
    first, last = curve.points[0].value if curve.points else None, curve.points[-1].value if curve.points else None
    summary = f"{curve.name} by step: from {first:g} to {last:g}" if first is not None and last is not None else ""
    lines = [(line.undone, [(float(p.step), p.value) for p in line.points if p.value is not None]) for line in curve.lines]  # fmt: skip
    return _plot(curve.name, summary, lines, [float(step) for step in curve.broken], None)


def steps_plot(lines: Sequence[Line], begin: float) -> Plot | None:
    """Steps by time since ``begin``; None where nothing told any."""
    if not lines:
        return None
    drawn = [(line.undone, [(p.time - begin, float(p.step)) for p in line.points]) for line in lines]
    summary = f"steps by time: up to {max(p.step for line in lines for p in line.points)}"
    return _plot("steps", summary, drawn, [], begin)


def _plot(
    title: str,
    summary: str,
    lines: Sequence[tuple[bool, Sequence[tuple[float, float]]]],
    broken: Sequence[float],
    begin: float | None,
) -> Plot:
    """``begin``: what is across are seconds; None: steps."""
    every = [point for _, line in lines for point in line]
    low_x, high_x = min(x for x, _ in every), max([x for x, _ in every] + list(broken))
    low_x = min([low_x, *broken])
    low_y, high_y = min(y for _, y in every), max(y for _, y in every)
    if begin is not None:
        low_x, low_y = 0.0, min(low_y, 0.0)
    high_x = high_x if high_x > low_x else low_x + 1.0
    up = _nice(low_y, high_y, 5)
    low_y, high_y = min(low_y, up[0]), max(high_y, up[-1])
    left, right, top, bottom = CURVE_LEFT, CURVE_WIDTH - 14.0, 12.0, CURVE_HEIGHT - 30.0

    def x(value: float) -> float:
        return round(left + (value - low_x) / (high_x - low_x) * (right - left), 2)

    def y(value: float) -> float:
        return round(bottom - (value - low_y) / (high_y - low_y) * (bottom - top), 2)

    paths = tuple(
        Stroke(
            " ".join(f"{x(a):g},{y(b):g}" for a, b in line), undone, (x(line[0][0]), y(line[0][1])) if len(line) == 1 else None
        )
        for undone, line in lines
        if line
    )  # fmt: skip
    if begin is None:
        across = tuple(Tick(x(at), f"{at:.10g}") for at in _nice(low_x, high_x, 5) if low_x <= at <= high_x and at == int(at))  # fmt: skip
    else:
        across = tuple(Tick(x(at), _short(at)) for at in _times(high_x, 5))
    return Plot(
        title, summary, "by step" if begin is None else "by time since the begin", CURVE_WIDTH, CURVE_HEIGHT, left, right, top, bottom, paths, across,
        tuple(Tick(y(at), f"{at:.6g}") for at in up), tuple(x(step) for step in broken),
    )  # fmt: skip


def _times(seconds: float, most: int = 8) -> list[float]:
    """Round moments from 0 on, at most ``most``."""
    size = next((t for t in _TIMES if seconds / t <= most - 1), None)
    if size is None:
        size = 604800 * math.ceil(seconds / 604800 / (most - 1))
    return [float(at) for at in range(0, int(seconds) + 1, size)]


def _nice(low: float, high: float, most: int) -> list[float]:
    """Round numbers over a range, at most ``most`` + 1, the first at or below ``low``, the last at or above ``high``."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / (most - 1)
    size = 10.0 ** math.floor(math.log10(rough))
    size = next(size * times for times in (1, 2, 5, 10) if size * times >= rough * 0.9999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [round(at * size, 12) for at in range(first, last + 1)]


def _short(seconds: float) -> str:
    return "0" if seconds == 0 else (f"{seconds:g} s" if seconds < 60 else duration(seconds) or "")
