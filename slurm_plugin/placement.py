"""Which offering next, and why not the others. Pure.

A refusal for want of capacity or price cools an offering: it is passed over until a moment that lies further off with each refusal in a
row, and is forgiven with time. A reclaim only puts the offering's zone last: what was just taken back is likely to be taken back again,
but where nothing else is left it is still better than nothing (cases: "the replacement is bought in the zone that just reclaimed").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_plugin.cloud.provider import Market, Offering, RefusalKind

FIRST_COOLING = 30.0
LONGEST_COOLING = 900.0
FORGIVEN_AFTER = 3600.0
"""Seconds after the end of a cooling at which one earlier refusal is forgotten; each further one after as long again."""
RECLAIM_COOLING = 600.0
SHORT_WAIT = 15.0
"""A node that boots waits this long for an offering to cool, rather than being set down."""


@dataclass(frozen=True, slots=True)
class OfferingState:
    """What is remembered of one offering. Times in Unix seconds, 0 for never.

    ``refused_until`` follows NO_CAPACITY, PRICE and machines that never became nodes; ``stopped_until`` follows QUOTA and MISTAKE, which
    are no matter of capacity: asking again at once would only be refused again. ``reclaimed_until`` puts the offering last.
    """

    offering_id: str
    failures: int = 0
    refused_until: float = 0.0
    stopped_until: float = 0.0
    reclaimed_until: float = 0.0
    text: str = ""

    def ready_at(self) -> float:
        """When it may be asked again."""
        return max(self.refused_until, self.stopped_until)


@dataclass(frozen=True, slots=True)
class Choice:
    """One offering that was passed over: why, and until when. ``capacity``: for want of capacity (or price), nothing else."""

    offering_id: str
    why: str
    until: float
    capacity: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """``ready`` are offerings to ask, in order; ``passed`` the others. ``next_at``: when the first of those is ready again."""

    ready: tuple[str, ...]
    passed: tuple[Choice, ...]
    next_at: float | None


def plan(
    offerings: Sequence[Offering],
    states: Mapping[str, OfferingState],
    now: float,
    silent_providers: Collection[str] = (),
) -> Plan:
    """Order the offerings of a nodeset. ``silent_providers`` do not answer: their offerings wait, and nothing is concluded."""
    ready: list[tuple[bool, int, str]] = []
    passed: list[Choice] = []
    for index, offering in enumerate(offerings):
        state = states.get(offering.id) or OfferingState(offering.id)
        if offering.provider in silent_providers:
            passed.append(Choice(offering.id, f"{offering.provider} does not answer", now))
        elif state.ready_at() > now:
            capacity = state.refused_until >= state.stopped_until
            passed.append(Choice(offering.id, state.text or "cooling", state.ready_at(), capacity))
        else:
            ready.append((state.reclaimed_until > now, index, offering.id))
    return Plan(
        ready=tuple(offering_id for _, _, offering_id in sorted(ready)),
        passed=tuple(passed),
        next_at=min((choice.until for choice in passed), default=None),
    )


def refused(state: OfferingState, kind: RefusalKind, text: str, now: float) -> OfferingState:
    """The state after a refusal. TRY_LATER changes nothing."""
    if kind is RefusalKind.TRY_LATER:
        return state
    failures = forgiven(state, now).failures + 1
    until = now + min(LONGEST_COOLING, FIRST_COOLING * 2 ** min(failures - 1, 10))
    if kind in (RefusalKind.NO_CAPACITY, RefusalKind.PRICE):
        return replace(state, failures=failures, refused_until=max(until, state.refused_until), text=text)
    return replace(state, failures=failures, stopped_until=max(until, state.stopped_until), text=text)


def launched(state: OfferingState, now: float) -> OfferingState:
    """The state after a success: half of what was held against it is forgotten."""
    return replace(forgiven(state, now), failures=state.failures // 2)


def reclaimed(state: OfferingState, now: float) -> OfferingState:
    """The state after a reclaim in its zone."""
    return replace(state, reclaimed_until=max(state.reclaimed_until, now + RECLAIM_COOLING))


def forgiven(state: OfferingState, now: float) -> OfferingState:
    """With the failures that time has made forget."""
    past = now - state.ready_at()
    if state.failures == 0 or past < FORGIVEN_AFTER:
        return state
    return replace(state, failures=max(0, state.failures - int(past // FORGIVEN_AFTER)))


def same_zone(offering: Offering, others: Collection[Offering]) -> tuple[str, ...]:
    """Ids of the offerings that a reclaim of this one speaks against: interruptible ones of the same zone, itself included."""
    here = (offering.provider, offering.region, offering.zone)
    return tuple(
        o.id for o in others if (o.provider, o.region, o.zone) == here and (o.market is Market.SPOT or o == offering)
    )


def describe(plan_: Plan, now: float) -> str:
    """Why nothing can be asked now, shortly: for a node's reason and a job's comment."""
    if not plan_.passed:
        return "no offerings"
    first = min(plan_.passed, key=lambda choice: choice.until)
    wait = max(0, round(first.until - now))
    more = f" and {len(plan_.passed) - 1} more" if len(plan_.passed) > 1 else ""
    return f"{first.offering_id}{more}: {first.why}; next try in {wait} s"
