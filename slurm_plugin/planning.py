"""What a run costs on capacity that is taken back: by interval, for one reclaim and on average; and when to fall back. Pure.

Money is in the currency of ``hourly``; rates are interruptions an hour of the whole job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from job_wrapper.interval import Basis, Interval, Saved, choose, waste

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Work:
    """A run as it is planned. ``hours`` of work without any interruption; ``hourly``: what all its machines cost an hour.

    ``saved``: what a save takes; None: not known. ``restore``: seconds from a reclaim until the program works again, all of them paid.
    """

    hours: float
    hourly: float
    rate: float
    saved: Saved | None = None
    restore: float = 0.0

    @property
    def undisturbed(self) -> float:
        """Cost without interruptions and without checkpoints."""
        return self.hours * self.hourly


@dataclass(frozen=True, slots=True)
class Line:
    """One interval's costs. Seconds in ``interval`` (None: no checkpoints at all), money in the others."""

    interval: float | None
    why: str
    lost: float
    """Of one reclaim at the given hour: the work done since the last commit, and the way back."""
    most: float
    """Of one reclaim at the worst moment."""
    saving: float
    """All checkpoints of the run."""
    total: float
    """The whole run with that one reclaim."""
    expected: float | None
    """The whole run as often as it is taken back on average; None where it would never end."""


def auto(work: Work) -> Interval:
    """What ``--interval auto`` comes to for this run."""
    saved = () if work.saved is None else (work.saved,)
    return choose(Basis(work.rate, saved, work.restore, work.hours * HOUR))


def without(work: Work, at: float) -> Line:
    """No checkpoints: a reclaim ``at`` that hour loses all. Each of the expected ones begins the run anew."""
    back = _back(work)
    lost = at * work.hourly + back
    exponent = work.rate * work.hours
    # Mean time until the first stretch of so many hours without an interruption (a Poisson process).
    hours = math.expm1(exponent) / work.rate if 0 < exponent < 700 else work.hours if exponent == 0 else math.inf
    times = math.expm1(exponent) if exponent < 700 else math.inf
    expected = hours * work.hourly + times * back
    return Line(
        None,
        "no checkpoints",
        lost,
        work.undisturbed + back,
        0.0,
        work.undisturbed + lost,
        expected if math.isfinite(expected) else None,
    )


def line(work: Work, at: float, interval: Interval) -> Line:
    """With checkpoints every ``interval``; one reclaim ``at`` that hour, without notice: just before the checkpoint that would be due then."""
    saved = work.saved or Saved(0.0, 0.0)
    step, lag = interval.seconds / HOUR, saved.upload / HOUR
    # One that begins, or is committed, at the very moment of the reclaim is not made. A tolerance, so that 0.3 h are three times 0.1 h.
    commits = max(0, math.ceil((at - lag) / step - 1e-9) - 1)
    back = _back(work)
    lost = (at - commits * step) * work.hourly + back
    count = max(0, math.ceil(work.hours / step - 1e-9) - 1)  # the one at the end is the run's result
    saving = count * saved.stall / HOUR * work.hourly
    share = waste(interval.seconds, saved, work.rate, work.restore).total
    return Line(
        interval.seconds,
        interval.why,
        lost,
        min(step + lag, work.hours) * work.hourly + back,
        saving,
        work.undisturbed + saving + lost,
        work.undisturbed * (1 + share),
    )


@dataclass(frozen=True, slots=True)
class Fallback:
    """``failures``: after so many reclaims the run goes on on-demand. ``why`` in words; ``usual`` is what on-demand costs for the whole run."""

    failures: int
    why: str
    usual: float

    @property
    def rule(self) -> str:
        """As burst.yaml's ``placement`` has it."""
        return "interruptible: never" if self.failures == 0 else f"on_demand_after: {{failures: {self.failures}}}"


def fallback(work: Work, interval: Interval, on_demand: float, recoveries: int = 8) -> Fallback:
    """When on-demand machines, at ``on_demand`` an hour for all, are the better buy. ``recoveries``: as often a job is brought back at most.

    After n reclaims spot has cost n times the average loss more; once that is what spot saves over the whole run, it saves nothing.
    """
    usual = work.hours * on_demand
    average = line(work, 0.0, interval)
    expected = average.expected
    if expected is None or expected >= usual:
        return Fallback(0, "on average spot costs as much as on-demand, or more", usual)
    saved = work.saved or Saved(0.0, 0.0)
    loss = (interval.seconds / 2 + saved.upload) / HOUR * work.hourly + _back(work)
    saves = usual - work.undisturbed - average.saving
    failures = max(1, math.floor(saves / loss)) if loss > 0 else 1
    if failures > recoveries:
        return Fallback(recoveries, f"a job is brought back so often at most; by price it would be {failures}", usual)
    return Fallback(failures, "so many reclaims cost, on average, what spot saves over the whole run", usual)


def _back(work: Work) -> float:
    """What the way back costs."""
    return work.restore / HOUR * work.hourly
