"""Which offering next, and why not the others. Pure.

``cooling`` is what is remembered of an offering, ``rate`` what experience makes it likely to be taken back, ``fit`` whether its machines are
large enough, ``rules`` what an administrator allows and prefers, ``choose`` the choice itself.
"""

from slurm_plugin.placement.choose import (
    SHORT_WAIT,
    Choice,
    Knowledge,
    Passed,
    Plan,
    describe,
    excluded,
    plan,
    stands_against,
)
from slurm_plugin.placement.cooling import (
    FIRST_COOLING,
    FORGIVEN_AFTER,
    LONGEST_COOLING,
    RECLAIM_COOLING,
    OfferingState,
    cleared,
    forgiven,
    launched,
    reclaimed,
    refused,
    same_zone,
)
from slurm_plugin.placement.fit import too_small
from slurm_plugin.placement.rate import Experience, interruption_rate
from slurm_plugin.placement.rules import Interruptible, Need, Order, Rules, Stance, stance

__all__ = [
    "FIRST_COOLING",
    "FORGIVEN_AFTER",
    "LONGEST_COOLING",
    "RECLAIM_COOLING",
    "SHORT_WAIT",
    "Choice",
    "Experience",
    "Interruptible",
    "Knowledge",
    "Need",
    "OfferingState",
    "Order",
    "Passed",
    "Plan",
    "Rules",
    "Stance",
    "cleared",
    "describe",
    "excluded",
    "forgiven",
    "interruption_rate",
    "launched",
    "plan",
    "reclaimed",
    "refused",
    "same_zone",
    "stance",
    "stands_against",
    "too_small",
]
