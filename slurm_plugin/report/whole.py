"""Everything that a report tells of one run, gathered: for the page, the text and ``--json``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from job_wrapper.store.io_types import Entry
from slurm_plugin.cli import output, story
from slurm_plugin.prices import Cost, total
from slurm_plugin.report.curves import Curve, Line, curves, steps
from slurm_plugin.report.record import Doing, Record, Row, record
from slurm_plugin.slurm.records import Job
from slurm_plugin.timeline import Attempt

COLUMNS = (
    *("Attempt", "Job", "Node", "Offering", "Ended", "From step", "Last step"),
    *("Commits", "Took", "Worked", "Lost", "Cost", "On demand"),
)


@dataclass(frozen=True, slots=True)
class Money:
    """Of the whole run, all its machines, in ``currency``; None where it is not known."""

    paid: float | None
    on_demand: float | None
    saved: float | None
    """What the work that restored checkpoints spared would have cost."""
    currency: str
    machines: int
    """At a time, at most."""


@dataclass(frozen=True, slots=True)
class Whole:
    """``title``: the job's name, "" where Slurm does not tell it. ``notes``: what is not told here, and why."""

    job: str
    title: str
    address: str
    facts: tuple[tuple[str, str], ...]
    record: Record
    curves: tuple[Curve, ...]
    steps: tuple[Line, ...]
    money: Money
    costs: tuple[Cost, ...]
    story: tuple[tuple[float, str], ...]
    notes: tuple[str, ...]
    made_at: float

    def rows(self) -> list[list[str]]:
        """One line an attempt, under ``COLUMNS``; "" for what is not known."""
        pairs = zip(self.record.rows, self.costs, strict=True)
        return [[text or "" for text in self._row(row, cost)] for row, cost in pairs]

    def _row(self, row: Row, cost: Cost) -> list[str | None]:
        one = row.attempt
        took = sum(span.seconds for span in row.spans if span.doing is not Doing.WAITS)
        silent = row.seconds(Doing.SILENT)
        lost = f"at most {output.duration(silent)}" if silent else output.duration(row.seconds(Doing.LOST))
        return [
            str(one.epoch),
            f"{one.job_id}, restart {one.restart_count}" if one.restart_count else one.job_id,
            one.node,
            one.offering or None,
            ended(one),
            _text(one.restored_step),
            _text(one.last_step),
            str(one.commits),
            output.duration(took),
            output.duration(row.seconds(Doing.WORKS)),
            lost,
            output.money(cost.paid, self.money.currency),
            output.money(cost.on_demand, self.money.currency),
        ]

    def as_json(self) -> dict[str, Any]:
        """The same as values. Times are Unix seconds."""
        return {
            "job": self.job,
            "name": self.title or None,
            "run": self.address,
            "facts": dict(self.facts),
            "begin": self.record.begin,
            "end": self.record.end,
            "seconds": asdict(self.record.totals),
            "attempts": [
                asdict(row.attempt)
                | {
                    "spans": [asdict(span) for span in row.spans],
                    "marks": [asdict(mark) for mark in row.marks],
                    "cost": asdict(cost),
                }
                for row, cost in zip(self.record.rows, self.costs, strict=True)
            ],
            "steps": [_line(line) for line in self.steps],
            "curves": {curve.name: [_line(line) for line in curve.lines] for curve in self.curves},
            "not_finite": {curve.name: list(curve.broken) for curve in self.curves if curve.broken},
            "money": asdict(self.money),
            "timeline": [{"time": when, "text": text} for when, text in self.story],
            "notes": list(self.notes),
        }


def _line(line: Line) -> dict[str, Any]:
    return {
        "epoch": line.epoch,
        "undone": line.undone,
        "points": [[p.time, p.step, p.value] for p in line.points],
    }


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def ended(one: Attempt) -> str:
    """Why, in a few words."""
    return {"running": "goes on", "lost": "vanished"}.get(one.why, one.why)


def whole(
    job: str,
    address: str,
    entries: Sequence[Entry],
    made: Sequence[Attempt],
    shown: Job | None,
    facts: Sequence[tuple[str, str | None]],
    costs: Sequence[Cost],
    currency: str,
    machines: Sequence[int],
    decisions: Sequence[tuple[float, str]],
    notes: Sequence[str],
    now: float,
) -> Whole:
    """From what was found in the store, in Slurm and in the ledger. ``machines`` of each attempt, and ``costs`` of all of them; ``notes``: what could not be had."""
    found = record(entries, made, now, float(shown.submit_time) if shown is not None else None)
    drawn = curves(entries, made)
    told = list(notes)
    if not drawn:
        told.append(
            "No curves: the program told no values. `checkpoint.log(loss=…)`, or `job_wrapper.log(step, loss=…)`, does."
        )
    vanished = [str(row.attempt.epoch) for row in found.rows if row.seconds(Doing.SILENT)]
    if vanished:
        told.append(
            f"When attempt {', '.join(vanished)} ended is not known: it wrote nothing after its last commit. "
            "What it lost is at most the time until the next one."
        )
    return Whole(
        job=job,
        title=shown.name if shown is not None else "",
        address=address,
        facts=tuple((name, value) for name, value in facts if value),
        record=found,
        curves=tuple(drawn),
        steps=tuple(steps(entries, made)),
        money=_money(found, costs, currency, machines),
        costs=tuple(costs),
        story=tuple(sorted([*story.timeline(entries), *decisions], key=lambda event: event[0])),
        notes=tuple(told),
        made_at=now,
    )


def _money(found: Record, costs: Sequence[Cost], currency: str, machines: Sequence[int]) -> Money:
    """``costs``: of all machines of each attempt."""
    whole, most = total(costs), max(machines, default=1)
    rate = whole.paid / whole.hours if whole.paid is not None and whole.hours else None
    saved = None if rate is None else rate * most * found.totals.saved / 3600.0
    return Money(whole.paid, whole.on_demand, saved, currency, most)
