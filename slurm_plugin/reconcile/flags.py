"""Slurm's node flags to what a node is for us. Every combination has an answer (SLURM_FACTS §1.3; run on 22.05.8).

Precedence, strongest first, because several flags stand together (``DOWN+CLOUD+POWER_DOWN+NOT_RESPONDING+POWERING_UP`` has been seen):

    flags                                        phase
    -------------------------------------------  ----------------------------------------------------------------------
    the node is not in Slurm's answer            ABSENT      removed, or hidden (22.05 without PrivateData=cloud)
    FUTURE, UNKNOWN                              UNCLEAR     slurmctld just started: nothing is concluded
    POWERING_DOWN                                GOING_OFF   SuspendProgram was called
    POWER_UP (not POWERING_UP)                   ASKED_UP    ResumeProgram is about to be called
    POWERING_UP                                  COMING_UP   ResumeProgram was called
    POWERED_DOWN                                 OFF
    none of these                                UP          it has registered; it may still be DOWN, DRAIN, NOT_RESPONDING

DOWN (or ERROR) stands beside the phase, and so do DRAIN and POWER_DOWN ("power down when idle").
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from enum import Enum
from functools import lru_cache

from slurm_plugin.actions import OURS
from slurm_plugin.slurm.records import Node

TOLD_BY_CLOUD = ", told by the cloud"
"""Ends the drain reasons that the manager itself sets, so that they are told from the node agent's."""
NO_CAPACITY = f"{OURS}no capacity"
REFUSED = f"{OURS}can't be made"
NOTHING_TO_BUY = (NO_CAPACITY, REFUSED)
"""A node that is down for one of these comes back when there is something to buy again."""
SLURMS_OWN_DOWN = ("resumetimeout reached", "not responding", "node unexpectedly rebooted")
"""Reasons with which Slurm itself sets a node DOWN and after which nobody is looking into it."""
LAUNCHED_TWICE = "Duplicate jobid"
"""Reason with which Slurm itself drains a node that was to start a job which runs there already (src/slurmctld/agent.c). The job is requeued first."""
BUSY = ("ALLOCATED", "MIXED", "COMPLETING")
UNUSABLE = ("DRAIN", "FAIL", "DOWN", "ERROR", "MAINT", "RESERVED", "INVALID_REG", "INVAL", "POWER_DOWN", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED", "BLOCKED")  # fmt: skip


class Phase(Enum):
    """Where a node stands between off and up."""

    ABSENT = "absent"
    UNCLEAR = "unclear"
    GOING_OFF = "going off"
    OFF = "off"
    ASKED_UP = "asked up"
    COMING_UP = "coming up"
    UP = "up"


def phase(node: Node | None) -> Phase:
    """See the table above."""
    return Phase.ABSENT if node is None else _phase(node.states)


@lru_cache(maxsize=4096)
def _phase(states: frozenset[str]) -> Phase:
    # A few sets of flags stand for thousands of nodes, each looked at several times in a pass.
    if not states.isdisjoint(("FUTURE", "UNKNOWN")):
        return Phase.UNCLEAR
    if "POWERING_DOWN" in states:
        return Phase.GOING_OFF
    if "POWERING_UP" in states:
        return Phase.COMING_UP
    if "POWER_UP" in states:
        return Phase.ASKED_UP
    if "POWERED_DOWN" in states:
        return Phase.OFF
    return Phase.UP


def down(node: Node) -> bool:
    """Slurm does not use it, whatever its power state."""
    return node.has("DOWN", "ERROR")


def to_be_recovered(node: Node) -> bool:
    """A DOWN node that belongs back into the pool. One that an administrator set down is left to the administrator."""
    return node.reason.startswith(OURS) or node.reason.lower().startswith(SLURMS_OWN_DOWN)


def ready(node: Node) -> bool:
    """Up, idle and free to take a job at once."""
    return node.up and node.has("IDLE") and not node.has(*UNUSABLE, *BUSY)


def bootable(node: Node) -> bool:
    """Off, idle and free to be powered up."""
    return phase(node) is Phase.OFF and node.has("IDLE") and not node.has(*UNUSABLE, *BUSY)


_AGENT = re.compile(r"spotburst: (\S+) (reclaim|stop|hibernate)(?: by (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ))?")


def agents_notice(node: Node) -> tuple[bool, float | None]:
    """Whether the node's agent drained it for a reclaim, and the deadline that it gives."""
    match = _AGENT.match(node.reason) if node.has("DRAIN") and not node.reason.endswith(TOLD_BY_CLOUD) else None
    return match is not None, iso_time(match[3]) if match else None


def cloud_reason(provider: str, deadline: float | None) -> str:
    """The drain reason for a reclaim that the cloud's listing tells of."""
    by = (
        ""
        if deadline is None
        else " by " + datetime.fromtimestamp(deadline, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    return f"{OURS}{provider} reclaim{by}{TOLD_BY_CLOUD}"


def iso_time(text: str | None) -> float | None:
    """``2026-05-02T08:22:00Z`` to Unix seconds; None for anything else."""
    try:
        return datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
