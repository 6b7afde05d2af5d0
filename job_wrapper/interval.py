"""How often to save: the interval between checkpoints, and what it costs. Pure; for the wrapper and for ``spotburst plan``.

Of every interval T the program stands still for a save's *stall* d; an interruption, on average after M of work, costs half an interval
of work done again. The share lost, d/T + T/2M, is least near sqrt(2dM). ``optimum`` has the higher-order form, good also where saves are not
short against M. Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, equation 37.

A restore makes no interval better or worse by itself, but an hour that is spent coming back is no hour of work: M is counted without it.

Written for the wrapper, which starts with every job: named tuples, no other import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SHORTEST, LONGEST = 60.0, 6 * 3600.0
"""Seconds: what an interval may be. Every checkpoint adds an entry to the run's log, and entries are never removed."""
FIRST = 600.0
"""Seconds to the first checkpoint of a run, while nobody knows what one costs."""
FEWEST = 4
"""Checkpoints in the expected run time, at least."""
MOST_SAVING = 0.1
"""Share of the time that may be spent saving."""
REMEMBERED = 5
"""So many of the last saves are looked at."""
UNMEASURED = "no save measured yet"
"""Why, where there is nothing else to go by."""
SURE = 3
"""Saves that must have been measured before they may make the interval longer than ``FIRST``: of three, one that was slow changes nothing."""
NOTABLE = 1.25
"""A change by this factor is worth a word."""
USUAL_RATES = {"spot": 1 / 24.0, "on-demand": 1 / 720.0, "reservation": 1 / 720.0}
"""Interruptions a machine hour by market, before anything was seen: an assumption (one a day, one a month), not a cloud's figure."""
HOUR = 3600.0


class Saved(NamedTuple):
    """One save as it was measured, in seconds. ``stall``: the program stood still. ``upload``: what came after, beside the program."""

    stall: float
    upload: float


class Basis(NamedTuple):
    """What an interval is chosen from.

    ``rate``: interruptions an hour of the whole job, all its nodes. ``saved``: the last saves, none before the first. ``restore``: seconds
    from an attempt's start until its program works again. ``expected``: seconds that the run will take, None where nobody knows.
    """

    rate: float
    saved: tuple[Saved, ...] = ()
    restore: float = 0.0
    expected: float | None = None


class Interval(NamedTuple):
    """``seconds`` between checkpoints, and ``why``, for people."""

    seconds: float
    why: str


def rate_of(known: float, offering_id: str, nodes: int = 1) -> float:
    """Interruptions an hour of a job on ``nodes`` machines: one lost stops all. ``known``: a machine's, 0 where the node was told none.

    Then the usual one of the market that ``offering_id`` (provider/region/zone/type/market) names, spot where it names none.
    """
    usual = USUAL_RATES.get(offering_id.rpartition("/")[2], USUAL_RATES["spot"])
    return max(1, nodes) * (known if known > 0 else usual)


def rounded(rate: float) -> float:
    """To a power of two, so that what is built from it (a cloud's launch template) does not change with each observation.

    An interval goes by the root of the rate, so it is off by a fifth at most.
    """
    return 2.0 ** round(math.log2(rate)) if rate > 0 else 0.0


def optimum(stall: float, between: float) -> float:
    """Seconds between saves that lose least. ``stall``: of one save; ``between``: mean seconds of work between interruptions; both > 0."""
    if stall >= 2 * between:
        return between
    part = math.sqrt(stall / (2 * between))
    return math.sqrt(2 * stall * between) * (1 + part / 3 + part * part / 9) - stall


def choose(basis: Basis) -> Interval:
    """The interval that ``auto`` means now. Never such that saving takes more than a tenth of the time; otherwise from 1 m to 6 h."""
    at_least_four = None if basis.expected is None else max(SHORTEST, basis.expected / FEWEST)
    if not basis.saved:
        if at_least_four is not None and at_least_four < FIRST:
            return Interval(at_least_four, f"{FEWEST} in the expected {_time(basis.expected)}; {UNMEASURED}")
        return Interval(FIRST, UNMEASURED)
    stall = _median([save.stall for save in basis.saved])
    upload = _median([save.upload for save in basis.saved])
    between = _between(basis)
    seconds = optimum(stall, between) if stall > 0 else 0.0
    why = f"an interruption about every {_time(HOUR / basis.rate)}, a save stops the program {_time(stall)}"
    if at_least_four is not None and seconds > at_least_four:
        seconds, why = at_least_four, f"{FEWEST} in the expected {_time(basis.expected)}"
    if seconds > LONGEST:
        seconds, why = LONGEST, f"never longer ({why})"
    if seconds < SHORTEST:
        seconds, why = SHORTEST, f"never shorter ({why})"
    if seconds < stall + upload:
        seconds, why = stall + upload, f"a save takes {_time(stall + upload)} until it is committed"
    if seconds < stall / MOST_SAVING:
        seconds, why = stall / MOST_SAVING, f"at most a tenth of the time is spent saving, {_time(stall)} a save"
    return Interval(seconds, why)


def unsure(chosen: Interval, measured: int) -> Interval:
    """What to go by while only ``measured`` saves have been. The first one often waits for what no later one waits for (a connection, memory
    to be set aside, a program that still compiles); taken at its word it would keep the next checkpoint away for hours."""
    if 0 < measured < SURE and chosen.seconds > FIRST:
        return Interval(FIRST, f"no longer before {SURE} saves are measured ({chosen.why})")
    return chosen


def remember(saved: Sequence[Saved], new: Saved) -> tuple[Saved, ...]:
    """The last few, with the new one."""
    return (*saved, new)[-REMEMBERED:]


def notable(old: float, new: float) -> bool:
    """Whether the interval has changed by so much that it is worth a word."""
    return not old / NOTABLE < new < old * NOTABLE


class Waste(NamedTuple):
    """What is expected to be lost, as shares of the time worked: while saving, doing work again, and coming back."""

    saving: float
    again: float
    coming_back: float

    @property
    def total(self) -> float:
        """Of all three."""
        return self.saving + self.again + self.coming_back


def waste(interval: float, saved: Saved, rate: float, restore: float) -> Waste:
    """Expected at this interval. ``interval`` and ``restore`` in seconds, ``rate`` an hour.

    What an interruption undoes is half an interval on average, and what was on its way to the store.
    """
    a_second = rate / HOUR
    return Waste(saved.stall / interval, a_second * (interval / 2 + saved.upload), a_second * restore)


def _between(basis: Basis) -> float:
    """Mean seconds of work between interruptions. However long the way back, some work is done."""
    mean = HOUR / basis.rate
    return max(mean - basis.restore, mean / 10)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} h"
