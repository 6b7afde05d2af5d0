"""The offerings of a nodeset in the order in which they are to be asked, and why the others are passed over. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.placement.cooling import OfferingState
from slurm_plugin.placement.fit import too_small
from slurm_plugin.placement.rate import Experience, interruption_rate
from slurm_plugin.placement.rules import Interruptible, Need, Order, Rules, Stance, stance

SHORT_WAIT = 15.0
"""A node that boots waits this long for an offering to cool, rather than being set down."""
AS_LISTED = Rules()
ANY_JOB = Need()


class Passed(Enum):
    """Why an offering was passed over."""

    CAPACITY = "cooling"
    """Refused for want of capacity, or for its price, a short while ago."""
    STOPPED = "stopped"
    """Refused for a quota that may free up."""
    PERMANENT = "blocked"
    """Refused for what no waiting helps."""
    SMALL = "too small"
    """Its machine is smaller than the node that it is to be."""
    SILENT = "unreachable"
    """Its provider does not answer."""
    RULE = "excluded"
    """Burst.yaml does not allow it, for this job or now."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One offering that was passed over: why, and until when (Unix seconds; infinite where no waiting helps)."""

    offering_id: str
    why: str
    until: float
    kind: Passed = Passed.STOPPED

    @property
    def capacity(self) -> bool:
        """For want of capacity (or price), nothing else."""
        return self.kind is Passed.CAPACITY


@dataclass(frozen=True, slots=True)
class Plan:
    """``ready`` are offerings to ask, in order; ``passed`` the others. ``next_at``: when the first of those is ready again."""

    ready: tuple[str, ...]
    passed: tuple[Choice, ...]
    next_at: float | None
    why: str = ""
    """What is out of the ordinary about the order."""

    @property
    def only_capacity(self) -> bool:
        """Whether nothing but want of capacity stands against those that the rules allow."""
        allowed = [choice for choice in self.passed if choice.kind is not Passed.RULE]
        return bool(allowed) and all(choice.capacity for choice in allowed)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What else is known of offerings, by id: price of one machine an hour, experience, GPU type, and the size of their machines."""

    prices: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, Experience] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, MachineSize] = field(default_factory=dict)
    scattered: frozenset[str] = frozenset()
    """Ids of those whose cloud does not keep the machines of one call in one zone."""

    def rate(self, offering: Offering) -> float:
        """Estimated interruptions a machine hour."""
        return interruption_rate(offering.market, self.seen.get(offering.id) or Experience())

    def price(self, offering: Offering) -> float | None:
        """Of one machine an hour; None if it is not known."""
        return self.prices.get(offering.id)


def plan(
    offerings: Sequence[Offering],
    states: Mapping[str, OfferingState],
    now: float,
    silent_providers: Collection[str] = (),
    rules: Rules = AS_LISTED,
    need: Need = ANY_JOB,
    known: Knowledge | None = None,
    node: MachineSize | None = None,
) -> Plan:
    """Order the offerings of a nodeset. ``silent_providers`` do not answer: their offerings wait, and nothing is concluded.

    ``node``: what the nodeset's nodes have by their line in slurm.conf; None: any machine will do.
    """
    known = known or Knowledge()
    how, why = stance(rules, need, now)
    ready: list[tuple[tuple[object, ...], str]] = []
    passed: list[Choice] = []
    for index, offering in enumerate(offerings):
        state = states.get(offering.id) or OfferingState(offering.id)
        against = (
            excluded(offering, rules, known)
            or _unsuited(offering, need, known)
            or _not_yet(offering, rules, need, how, why, now)
        )
        if against:
            passed.append(against if isinstance(against, Choice) else _ruled_out(offering, against))
        elif small := too_small(known.sizes.get(offering.id), node):
            passed.append(Choice(offering.id, small, math.inf, Passed.SMALL))
        elif offering.provider in silent_providers:
            passed.append(Choice(offering.id, f"{offering.provider} does not answer", now, Passed.SILENT))
        elif standing := stands_against(state, now):
            passed.append(Choice(offering.id, state.text or "cooling", standing[1], standing[0]))
        else:
            unsafe = how is Stance.SAFE and offering.market is Market.SPOT
            key = (unsafe, state.reclaimed_until > now, *_preference(offering, rules.policy, known), index)
            ready.append((key, offering.id))
    moments = [choice.until for choice in passed if math.isfinite(choice.until)]
    return Plan(
        ready=tuple(offering_id for _, offering_id in sorted(ready)),
        passed=tuple(passed),
        next_at=min(moments, default=None),
        why=why if how is Stance.SAFE else "",
    )


def excluded(offering: Offering, rules: Rules, known: Knowledge | None = None) -> str:
    """Why burst.yaml never allows this offering, in words; "" if it does. Without ``known`` prices are not looked at."""
    if rules.regions and offering.region not in rules.regions:
        return f"region {offering.region} is not among placement.regions ({', '.join(rules.regions)})"
    if rules.zones and offering.zone not in rules.zones:
        return f"zone {offering.zone} is not among placement.zones ({', '.join(rules.zones)})"
    if rules.interruptible is Interruptible.NEVER and offering.market is Market.SPOT:
        return "placement.interruptible is never"
    if rules.interruptible is Interruptible.REQUIRED and offering.market is not Market.SPOT:
        return "placement.interruptible is required"
    if known is None:
        return ""
    gpu = known.gpus.get(offering.id, "")
    if rules.gpu_types and gpu not in rules.gpu_types:
        return f"GPU type {gpu or 'unknown'} is not among placement.gpu_types ({', '.join(rules.gpu_types)})"
    if rules.max_price is not None and offering.market is not Market.RESERVATION:
        price = known.price(offering)
        if price is None:
            return f"its price is not known, and placement.max_price is {rules.max_price:g}"
        if price > rules.max_price:
            return f"its price {price:g} is above placement.max_price {rules.max_price:g}"
    return ""


def _ruled_out(offering: Offering, why: str) -> Choice:
    return Choice(offering.id, why, math.inf, Passed.RULE)


def _unsuited(offering: Offering, need: Need, known: Knowledge) -> str:
    """Why it is nothing for this job, in words."""
    if need.together and offering.id in known.scattered:
        return f"zone {offering.zone} does not keep a job's nodes in one zone here: write the zone, or placement.across_zones"
    # A reservation is paid for already.
    if need.capped and offering.market is not Market.RESERVATION and known.price(offering) is None:
        return "its price is not known, and the run has a cost limit"
    return ""


def _not_yet(offering: Offering, rules: Rules, need: Need, how: Stance, why: str, now: float) -> Choice | None:
    if how is not Stance.PATIENT or offering.market is not Market.ON_DEMAND:
        return None
    wait = rules.on_demand_after_wait
    until = math.inf if wait is None or need.waited <= 0 else now + wait - need.waited
    return Choice(offering.id, why, until, Passed.RULE)


def stands_against(state: OfferingState, now: float) -> tuple[Passed, float] | None:
    """What that happened to an offering stands against it at ``now``, and until when (Unix seconds; infinite for good); None: nothing does."""
    until = state.ready_at()
    if until <= now:
        return None
    if state.permanent:
        return Passed.PERMANENT, until
    return Passed.CAPACITY if state.refused_until >= state.stopped_until else Passed.STOPPED, until


def _preference(offering: Offering, policy: Order, known: Knowledge) -> tuple[object, ...]:
    if policy is Order.CHEAPEST:
        price = known.price(offering)
        if offering.market is Market.RESERVATION:
            price = 0.0
        # An unknown spot price comes before an unknown on-demand one: that is what it is sold for.
        return (price is None, price or 0.0, offering.market is not Market.SPOT)
    if policy is Order.MOST_AVAILABLE:
        rank = {Market.RESERVATION: 0, Market.SPOT: 1, Market.ON_DEMAND: 2}[offering.market]
        return (rank, known.rate(offering) if offering.market is Market.SPOT else 0.0)
    return ()


def describe(plan_: Plan, now: float) -> str:
    """Why nothing can be asked now, shortly: for a node's reason and a job's comment."""
    if not plan_.passed:
        return "no offerings"
    first = min(plan_.passed, key=lambda choice: (choice.kind is Passed.RULE, choice.until))
    more = f" and {len(plan_.passed) - 1} more" if len(plan_.passed) > 1 else ""
    if plan_.next_at is None:
        what = "not tried again until an administrator has seen to it: spotburst offerings"
    else:
        what = f"next try in {max(0, round(plan_.next_at - now))} s"
    return f"{first.offering_id}{more}: {first.why}; {what}"
