"""A run's log as spans of time and sums of them: what was worked, what was lost, what was waited for. Pure; times in Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from statistics import median

from job_wrapper.store import told
from job_wrapper.store.io_types import Entry
from job_wrapper.store.io_types import Kind as EntryKind
from slurm_plugin.timeline import Attempt


class Doing(str, Enum):
    """What a run does in a span of time."""

    WAITS = "waits"
    """For its job's start, or between two attempts."""
    STARTS = "starts"
    """From the attempt's start until its program goes on: claim, restore, loading."""
    WORKS = "works"
    """Work that a commit holds, or that led to the end."""
    LOST = "lost"
    """Work since the last commit, which the next attempt does again."""
    LEAVES = "leaves"
    """From its last commit, made at a notice or by order, until it ended: the program did not go on."""
    SILENT = "silent"
    """From the last commit of an attempt that vanished until the next one: when it ended is not known."""


WORDS = {
    Doing.WAITS: "waits",
    Doing.STARTS: "starts and restores",
    Doing.WORKS: "works",
    Doing.LOST: "work lost",
    Doing.LEAVES: "leaves after its commit",
    Doing.SILENT: "vanished within",
}
"""As legends have it."""


@dataclass(frozen=True, slots=True)
class Span:
    """``begin`` to ``end``."""

    doing: Doing
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment: ``commit``, ``urgent`` (a commit at a notice), ``notice``, ``damaged`` (a checkpoint that could not be restored) or ``end``."""

    kind: str
    time: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt; the wait before it is its first span."""

    attempt: Attempt
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]

    def seconds(self, doing: Doing) -> float:
        """Spent with that."""
        return sum(span.seconds for span in self.spans if span.doing is doing)


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds, of one node's clock: a job on four nodes has four times as many machine seconds."""

    elapsed: float
    waited: float
    started: float
    worked: float
    lost: float
    silent: float
    """At most so much was lost besides, by attempts that vanished."""
    saved: float
    """Work that restored checkpoints spared: without any, each attempt would have begun anew."""
    saves: int
    save_seconds: float | None
    """Median of the seconds from asking for a checkpoint to its commit; None where none was asked for."""


@dataclass(frozen=True, slots=True)
class Record:
    """The whole run, oldest attempt first. ``end``: of the newest attempt, or ``now`` where it goes on."""

    begin: float
    end: float
    rows: tuple[Row, ...]
    totals: Totals


def record(entries: Sequence[Entry], made: Sequence[Attempt], now: float, submitted: float | None = None) -> Record:
    """``made``: the attempts of these entries. ``submitted``: when the job was, where Slurm still tells; one after the start is of a later requeue."""
    rows: list[Row] = []
    begin = made[0].started if made else now
    if submitted and submitted < begin:
        begin = submitted
    until = begin
    for one, after in zip_longest(made, made[1:]):
        if one is None:
            break
        mine = [entry for entry in entries if entry.epoch == one.epoch]
        spans = [Span(Doing.WAITS, until, one.started)] if one.started > until else []
        spans += _spans(one, after, _kept_until(one, after, mine), now)
        rows.append(Row(one, tuple(s for s in spans if s.seconds > 0), _marks(one, mine)))
        until = max((span.end for span in spans), default=until)
    return Record(begin, until, tuple(rows), _totals(rows, entries, begin, until))


def _kept_until(one: Attempt, after: Attempt | None, mine: Sequence[Entry]) -> float | None:
    """When the newest commit was made that the next attempt went on from; None where it had nothing from this one."""
    commits = [e for e in mine if e.kind is EntryKind.COMMIT]
    if after is not None and after.restored_step is not None:
        older = [e for e in commits if (step := told.whole(e.body.get("step"))) is None or step <= after.restored_step]
        return older[-1].time if older else None
    return commits[-1].time if commits else None


def _spans(one: Attempt, after: Attempt | None, kept: float | None, now: float) -> list[Span]:
    going = max(one.started, one.resumed if one.resumed is not None else one.claimed)
    end, vanished = one.ended, False
    if end is None and one.why == "running":
        end = now
    elif end is None:
        # Nothing tells when it ended: at the latest when the next one began.
        end, vanished = (after.started, True) if after is not None else (one.last_commit or one.claimed, False)
    going = min(going, end)
    spans = [Span(Doing.STARTS, one.started, going)]
    stopped = one.urgent_commit == one.last_commit or one.why == "suspended"
    if one.why in ("finished", "running"):
        kept = end
    rest = Doing.SILENT if vanished else Doing.LEAVES if stopped and kept == one.last_commit else Doing.LOST
    kept = going if kept is None else min(max(going, kept), end)
    return [*spans, Span(Doing.WORKS, going, kept), Span(rest, kept, end)]


def _marks(one: Attempt, mine: Sequence[Entry]) -> tuple[Mark, ...]:
    marks = []
    for entry in mine:
        if entry.kind is EntryKind.COMMIT:
            kind = "urgent" if entry.body.get("urgent") else "commit"
            marks.append(Mark(kind, entry.time, told.whole(entry.body.get("step"))))
        elif entry.kind is EntryKind.RESTORE_FAILED:
            marks.append(Mark("damaged", entry.time))
    if one.noticed is not None:
        marks.append(Mark("notice", one.noticed))
    if one.ended is not None:
        marks.append(Mark("end", one.ended))
    return tuple(sorted(marks, key=lambda mark: mark.time))


def _totals(rows: Sequence[Row], entries: Sequence[Entry], begin: float, end: float) -> Totals:
    by = {doing: sum(row.seconds(doing) for row in rows) for doing in Doing}
    saved = worked = 0.0
    for row in rows:
        if row.attempt.epoch > 1 and row.attempt.restored_step is not None:
            saved += worked
        worked += row.seconds(Doing.WORKS)
    commits = [e for e in entries if e.kind is EntryKind.COMMIT]
    asked = [
        e.time - at for e in commits if (at := told.seconds(e.body.get("requested_at"))) is not None and at <= e.time
    ]
    return Totals(
        elapsed=end - begin,
        waited=by[Doing.WAITS],
        started=by[Doing.STARTS],
        worked=by[Doing.WORKS],
        lost=by[Doing.LOST],
        silent=by[Doing.SILENT],
        saved=saved,
        saves=len(commits),
        save_seconds=median(asked) if asked else None,
    )
