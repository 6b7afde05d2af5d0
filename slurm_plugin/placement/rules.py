"""What an administrator allows and prefers, and what one job's situation makes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from job_wrapper.counted import counted

RESTART_COST = 600.0
"""Seconds that one more interruption may cost a run: boot, restore, and work done again."""
SLACK = 1.2
"""A run's remaining time is an estimate: it may take this many times as long."""


class Order(str, Enum):
    """Which of the allowed offerings is asked first."""

    ORDER = "order"
    """As listed."""
    CHEAPEST = "cheapest"
    """Reservations, which are paid for, then by price. An unknown price comes after the known ones."""
    MOST_AVAILABLE = "most_available"
    """Reservations, then spot by its estimated rate of interruptions, then on-demand."""
    DEADLINE = "deadline"
    """As listed, until a run could miss its deadline: then what can't be taken back comes first."""


class Interruptible(str, Enum):
    """Whether capacity that can be taken back may, or must, be bought."""

    NEVER = "never"
    ALLOWED = "allowed"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Rules:
    """``placement`` of burst.yaml, for one nodeset. Empty tuples allow everything; times in seconds, shares from 0 to 1."""

    policy: Order = Order.ORDER
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    interruptible: Interruptible = Interruptible.ALLOWED
    max_price: float | None = None
    """Highest price of one machine an hour, in the price table's currency."""
    on_demand_after_failures: int | None = None
    on_demand_after_wait: float | None = None
    """Where one of these two is set, on-demand is bought only after it; where neither is, as the offerings are listed."""
    final_on_demand: float = 0.0
    """The last part of a run, as a share of its work, that goes to capacity that can't be taken back."""
    queue_timeout: float = 86400.0
    cost_limit: float | None = None
    """Most that one run may cost, in the same currency."""
    across_zones: bool = False
    """Whether the nodes of one job may have machines in several zones."""


@dataclass(frozen=True, slots=True)
class Need:
    """One job's situation. None: not known."""

    failures: int = 0
    """Starts of the job that came to nothing: interruptions, and want of capacity."""
    waited: float = 0.0
    """Seconds for which it has waited for capacity."""
    left: float | None = None
    """Share of its work that is still to be done."""
    remaining: float | None = None
    """Seconds that it still takes."""
    deadline: float | None = None
    """Unix seconds."""
    capped: bool = False
    """It has a cost limit: what has no known price is not bought."""
    together: bool = False
    """Its nodes, several, belong into one zone."""


class Stance(Enum):
    """What a job's situation makes of the rules."""

    PATIENT = "patient"
    """On-demand is not bought yet."""
    OPEN = "open"
    """Whatever is listed."""
    SAFE = "safe"
    """What can't be taken back comes first."""


def stance(rules: Rules, need: Need, now: float) -> tuple[Stance, str]:
    """The stance, and why in a few words ("" where nothing out of the ordinary is done)."""
    if need.left is not None and rules.final_on_demand > 0.0 and need.left <= rules.final_on_demand:
        return Stance.SAFE, f"the last {rules.final_on_demand:.0%} of the run"
    if rules.policy is Order.DEADLINE and need.deadline is not None and need.remaining is not None:
        latest = now + need.remaining * SLACK + RESTART_COST
        if latest >= need.deadline:
            return Stance.SAFE, "its deadline is near"
    after, wait = rules.on_demand_after_failures, rules.on_demand_after_wait
    if after is None and wait is None:
        return Stance.OPEN, ""
    if after is not None and need.failures >= after:
        return Stance.SAFE, f"{counted(need.failures, 'start')} came to nothing"
    if wait is not None and need.waited >= wait:
        return Stance.OPEN, f"waited {round(need.waited)} s for capacity"
    waits = [f"{counted(after, 'start')} that came to nothing"] if after is not None else []
    waits += [f"a wait of {wait:g} s"] if wait is not None else []
    return Stance.PATIENT, f"on-demand only after {' or '.join(waits)}"
