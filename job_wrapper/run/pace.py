"""The interval in force, and what it is chosen from as the attempt goes on. Pure: times in (Unix seconds), an interval out."""

from __future__ import annotations

from job_wrapper import interval
from job_wrapper.interval import Basis, Interval, Saved
from job_wrapper.run.events import Save

_SETTLED = 60.0
"""Seconds of work after which a program's counters tell how fast it is."""


class Pace:
    """``now`` is the interval in force. With a fixed one (``seconds`` above 0) nothing that is measured changes it."""

    def __init__(self, seconds: float, rate: float) -> None:
        """``rate``: interruptions an hour of the whole job, for ``seconds`` 0, which is ``auto``."""
        self.auto = seconds <= 0
        self.now = Interval(seconds, "as asked for")
        self._basis = Basis(rate)
        self._since = 0.0
        self._limit: float | None = None
        self._first: tuple[float, int] | None = None
        if self.auto:
            self.now = interval.choose(self._basis)

    @property
    def seconds(self) -> float:
        """Between the end of one checkpoint and the asking for the next."""
        return self.now.seconds

    def ready(self, since: float, limit: float | None, now: float) -> None:
        """The program starts. ``since``: when the attempt began; ``limit``: seconds that Slurm gives the job, None where it sets none."""
        self._since, self._limit = since, limit
        self._choose(self._basis._replace(restore=max(0.0, now - since), expected=limit))

    def going(self, restored: bool, completed: int | None, total: int | None, now: float) -> None:
        """The program works. ``restored``: it has just loaded its state; ``completed`` and ``total``: how far it is."""
        basis = self._basis
        if restored:
            basis = basis._replace(restore=max(0.0, now - self._since))
        if completed is not None:
            self._first = self._first or (now, completed)
            basis = basis._replace(expected=self._expected(completed, total, now))
        self._choose(basis)

    def saved(self, save: Save, seconds: float) -> float | None:
        """A commit is made, ``seconds`` after the program's answer. Returns the interval before where the change is worth a word."""
        measured = measure(save, seconds)
        before = self.seconds
        if measured is not None:
            self._choose(self._basis._replace(saved=interval.remember(self._basis.saved, measured)))
        return before if interval.notable(before, self.seconds) else None

    def told(self) -> dict[str, object]:
        """As log entries carry it."""
        return {"seconds": round(self.now.seconds, 3), "why": self.now.why, "auto": self.auto}

    def _expected(self, completed: int, total: int | None, now: float) -> float | None:
        """The whole run by the speed of this attempt; Slurm's limit where that is less, or nothing is known of the speed yet."""
        if self._first is None or total is None:
            return self._limit
        began, first = self._first
        if now - began < _SETTLED or completed <= first:
            return self._basis.expected
        whole = total * (now - began) / (completed - first)
        return whole if self._limit is None else min(whole, self._limit)

    def _choose(self, basis: Basis) -> None:
        self._basis = basis
        if self.auto:
            self.now = interval.unsure(interval.choose(basis), len(basis.saved))


def measure(save: Save, seconds: float) -> Saved | None:
    """What an ordinary checkpoint cost; None for one that says nothing of the next: urgent, or the program's own. Pure.

    A program that stages its state (``checkpoint.staged``) stood still only so long. One that does not is taken to have stood still from
    the request to the commit: the wait for the end of its step is in that, so rather too long than too short.
    """
    if save.urgent:
        return None
    waited = 0.0 if save.asked is None or save.answered is None else max(0.0, save.answered - save.asked)
    if save.stall is not None:
        return Saved(save.stall, max(0.0, waited - save.stall) + seconds)
    if save.asked is None and save.parts:
        return None
    return Saved(waited + seconds, 0.0)
