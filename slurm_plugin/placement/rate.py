"""How often machines of an offering are taken back, estimated from what was seen of it and from a prior where little was. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from job_wrapper.interval import USUAL_RATES
from slurm_plugin.cloud.provider import Market

PRIOR_RATE = {market: USUAL_RATES[market.value] for market in Market}
"""Interruptions a machine hour before anything was seen."""
PRIOR_HOURS = 24.0
"""Machine hours of experience that outweigh the prior."""
REFUSAL_WEIGHT = 0.25
"""A recent refusal speaks of thin capacity, as a quarter of a reclaim does."""
MOST_REFUSALS = 20
"""More refusals say nothing more: a full offering is asked again and again."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What the ledger knows of one offering: machine hours, launches and reclaims (losses without notice included) of the last 7 days,
    refusals for want of capacity of the last 24 hours."""

    hours: float = 0.0
    launches: int = 0
    reclaims: int = 0
    refusals: int = 0


def interruption_rate(market: Market, seen: Experience) -> float:
    """Estimated interruptions a machine hour: the mean of a gamma posterior over a Poisson rate, refusals counted as parts of reclaims."""
    events = seen.reclaims + REFUSAL_WEIGHT * min(seen.refusals, MOST_REFUSALS)
    return (events + PRIOR_HOURS * PRIOR_RATE[market]) / (max(0.0, seen.hours) + PRIOR_HOURS)
