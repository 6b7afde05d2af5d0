"""What a refusal, a launch and a reclaim change in what is remembered of an offering. Pure.

A refusal for want of capacity or price cools an offering: it is passed over until a moment that lies further off with each refusal in a
row, and is forgiven with time. A reclaim only puts the offering's zone last: what was just taken back is likely to be taken back again,
but where nothing else is left it is still better than nothing (cases: "the replacement is bought in the zone that just reclaimed").
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from slurm_plugin.cloud.provider import Market, Offering, RefusalKind

FIRST_COOLING = 30.0
LONGEST_COOLING = 900.0
FORGIVEN_AFTER = 3600.0
"""Seconds after the end of a cooling at which one earlier refusal is forgotten; each further one after as long again."""
RECLAIM_COOLING = 600.0


@dataclass(frozen=True, slots=True)
class OfferingState:
    """What is remembered of one offering. Times in Unix seconds, 0 for never.

    ``refused_until`` follows NO_CAPACITY, PRICE and machines that never became nodes; ``stopped_until`` follows QUOTA and MISTAKE, which
    are no matter of capacity: asking again at once would only be refused again; infinite where no waiting helps, until its settings change
    or an administrator clears it. ``reclaimed_until`` puts the offering last.
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

    @property
    def permanent(self) -> bool:
        """Whether no waiting helps."""
        return math.isinf(self.stopped_until)


def refused(
    state: OfferingState, kind: RefusalKind, text: str, now: float, *, permanent: bool = False
) -> OfferingState:
    """The state after a refusal. TRY_LATER changes nothing. ``permanent``: no waiting helps.

    What is refused while the offering cools was asked before it did (many machines are asked for at once): that is one refusal.
    """
    if kind is RefusalKind.TRY_LATER:
        return state
    short = kind in (RefusalKind.NO_CAPACITY, RefusalKind.PRICE)
    if now < (state.refused_until if short else state.stopped_until) and not permanent:
        return replace(state, text=text)
    failures = forgiven(state, now).failures + 1
    until = now + min(LONGEST_COOLING, FIRST_COOLING * 2 ** min(failures - 1, 10))
    if short:
        return replace(state, failures=failures, refused_until=max(until, state.refused_until), text=text)
    until = math.inf if permanent else until
    return replace(state, failures=failures, stopped_until=max(until, state.stopped_until), text=text)


def launched(state: OfferingState, now: float) -> OfferingState:
    """The state after a success: half of what was held against it is forgotten, and what "no waiting helps" was not so."""
    stopped = 0.0 if state.permanent else state.stopped_until
    return replace(forgiven(state, now), failures=state.failures // 2, stopped_until=stopped)


def cleared(state: OfferingState) -> OfferingState:
    """The state after a person has seen to it: it may be asked at once. Reclaims stay remembered."""
    return OfferingState(state.offering_id, reclaimed_until=state.reclaimed_until)


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
