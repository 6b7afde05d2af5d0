"""Whether clocks agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurm_plugin.checks.finding import Finding, fault, note, ok

FAULT, NOTE = 5.0, 2.0
"""Seconds. Slurm passes over a registration whose boot time lies before its request (node_mgr.c, 22.05 to 26.05), munge refuses what is more
than five minutes off, and the deadline of a notice is a time of day."""
FIX = "let all machines take the time from one place: `timedatectl set-ntp true`, or chrony"


@dataclass(frozen=True, slots=True)
class Reading:
    """``moment``: Unix seconds by the other clock, true to ``grain`` seconds, read between ``before`` and ``after`` by this one."""

    whose: str
    moment: float
    before: float
    after: float
    grain: float = 0.0


def least_skew(reading: Reading) -> float:
    """Seconds by which the other clock is ahead (behind: negative) at least; 0 where the reading allows that they agree."""
    earliest, latest = reading.moment - reading.after, reading.moment + reading.grain - reading.before
    return earliest if earliest > 0 else latest if latest < 0 else 0.0


def agree(reading: Reading) -> Iterator[Finding]:
    """One other clock against this machine's."""
    skew = least_skew(reading)
    what = "clock"
    told = f"{reading.whose} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) >= FAULT:
        yield fault(
            what,
            f"{told}: nodes that boot may never register, and deadlines of notices are taken for {abs(skew):.0f} s too {'early' if skew < 0 else 'late'}",
            FIX,
        )
    elif abs(skew) >= NOTE:
        yield note(what, told, FIX)
    else:
        yield ok(what, f"agrees with {reading.whose}")
