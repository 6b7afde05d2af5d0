"""A report on a terminal: facts, one bar an attempt, what came of the curves."""

from __future__ import annotations

from collections.abc import Sequence

from job_wrapper.curves import Point
from slurm_plugin.cli import output
from slurm_plugin.report.record import WORDS, Doing, Record, Row
from slurm_plugin.report.whole import Whole, ended

_SIGNS = {Doing.WAITS: ".", Doing.STARTS: ":", Doing.WORKS: "#", Doing.LOST: "x", Doing.LEAVES: "-", Doing.SILENT: "?"}
LEGEND = "  ".join(f"{sign} {WORDS[doing]}" for doing, sign in _SIGNS.items())
BAR = 60
"""Characters."""


def figures(told: Whole) -> list[tuple[str, str | None]]:
    """Names and values of the sums; None for what is not known."""
    totals, money = told.record.totals, told.money
    many = f" ({money.machines} machines at a time)" if money.machines > 1 else ""
    lost = (output.duration(totals.lost) if totals.lost else "none") or ""
    if totals.silent:
        lost = (f"{lost}, and " if totals.lost else "") + f"at most {output.duration(totals.silent)}"
        lost += " more" if totals.lost else ""
    paid, usual = output.money(money.paid, money.currency), output.money(money.on_demand, money.currency)
    saved = output.money(money.saved, money.currency)
    spared = output.duration(totals.saved)
    return [
        ("In all", output.duration(totals.elapsed)),
        ("Work kept", output.duration(totals.worked)),
        ("Work lost", lost),
        ("Spared", f"{spared} of work, kept by checkpoints" + (f", {saved}" if saved else "")),
        ("Waited", output.duration(totals.waited)),
        ("Restoring", output.duration(totals.started)),
        ("Saves", _saves(totals.saves, totals.save_seconds)),
        ("Cost", f"{paid}{many}" if paid else "not known"),
        ("On demand", f"{usual}, for the same time" if usual else "not known"),
    ]


def _saves(count: int, seconds: float | None) -> str:
    return f"{count}" + (f", {output.duration(seconds)} each from asking to commit" if seconds is not None else "")


def show(told: Whole) -> None:
    """Print it."""
    output.facts([("Job", f"{told.job} ({told.title})" if told.title else told.job), ("Run", told.address)])
    output.facts([*told.facts, *figures(told)])
    output.console().print()
    names = [f"{row.attempt.epoch} {row.attempt.node}" for row in told.record.rows]
    wide = max(map(len, names), default=0)
    output.lines(
        f"Time line ({LEGEND})",
        (
            f"{name:<{wide}}  {bar(row, told.record)}  {ended(row.attempt)}"
            for name, row in zip(names, told.record.rows, strict=True)
        ),
    )
    output.lines("Curves", (line for curve in told.curves if (line := _curve(curve.name, curve.points))))
    output.lines("Not told here", told.notes)


def bar(row: Row, record: Record) -> str:
    """One attempt over the whole run's time; what is shorter than a sign shows if nothing longer has its place."""
    length = max(record.end - record.begin, 1e-9)
    signs = [" "] * BAR
    for span in sorted(row.spans, key=lambda span: span.seconds):
        first = min(BAR - 1, int((span.begin - record.begin) / length * BAR))
        last = min(BAR - 1, max(first, int((span.end - record.begin) / length * BAR - 1e-9)))
        for at in range(first, last + 1):
            if span.seconds >= length / BAR or signs[at] == " ":
                signs[at] = _SIGNS[span.doing]
    return "".join(signs)


def _curve(name: str, points: Sequence[Point]) -> str:
    known = [(point.step, point.value) for point in points if point.value is not None]
    if not known:
        return ""
    (first, began), (last, ended_at), (step, least) = known[0], known[-1], min(known, key=lambda pair: pair[1])
    return f"{name}: {began:g} at step {first}, {ended_at:g} at step {last}, lowest {least:g} at step {step}"
