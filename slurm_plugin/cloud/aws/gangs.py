"""Which launches share a fleet: decided here, sent elsewhere.

Machines of a gang come all or not at all, and EC2 promises that of a whole fleet only. So gangs that are alike first go into one fleet together:
250 jobs of 4 nodes are two calls then, not 250. Where there is too little for all of them, half of them is asked for at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from slurm_plugin.cloud.aws import fleet as fleets
from slurm_plugin.cloud.aws.errors import ApiError
from slurm_plugin.cloud.provider import LaunchRequest, RefusalKind

TOO_LITTLE = (RefusalKind.NO_CAPACITY, RefusalKind.QUOTA)
"""Fewer machines might come."""
Group = list[LaunchRequest]
"""A gang, or what has none."""


def alike(requests: Iterable[LaunchRequest]) -> list[list[Group]]:
    """What may share a fleet: gangs of the same offering, zone and nodeset; and, by itself, what has no gang.

    Raises ``ApiError`` for a gang that could not be named.
    """
    groups: dict[tuple[str, str, str, str | None], Group] = {}
    for request in requests:
        groups.setdefault((request.offering.id, request.zone, request.nodeset, request.gang), []).append(request)
    gangs: dict[tuple[str, str, str], list[Group]] = {}
    found: list[list[Group]] = []
    for (offering_id, zone, nodeset, gang), group in groups.items():
        if gang is None and fleets.hears_tags(group[0].offering):
            found.append([group])
        elif gang is None:
            found += [[[request]] for request in group]
        elif len(group) == 1:
            found.append([group])
        elif fleets.hears_tags(group[0].offering):
            gangs.setdefault((offering_id, zone, nodeset), []).append(group)
        else:
            raise ApiError(
                "NotBuiltOnNitro",
                f"{group[0].offering.instance_type}: jobs of several nodes need types built on the AWS Nitro System, "
                "since others do not see in their metadata which of the nodes they are",
            )
    return found + list(gangs.values())


def ask(groups: list[Group], send: Callable[[Group, bool], ApiError | None]) -> list[tuple[LaunchRequest, ApiError]]:
    """Ask for all groups by as few fleets as there is room for. Returns what was not asked for, and why.

    ``send(requests, trial)`` makes one fleet, and returns why it did not come whole; ``trial``: of several groups, so that a refusal for want
    of room is none of each. A group that is refused by itself speaks for those that are no smaller.
    """
    unasked: list[tuple[LaunchRequest, ApiError]] = []
    least: tuple[float, ApiError | None] = inf, None
    left = [groups]
    while left:
        some = left.pop(0)
        if least[1] is not None:
            unasked += [(request, least[1]) for group in some if len(group) >= least[0] for request in group]
        some = [group for group in some if len(group) < least[0]]
        if not some:
            continue
        trial = len(some) > 1
        why = send([request for group in some for request in group], trial)
        if why is None or why.kind not in TOO_LITTLE:
            continue
        if trial:
            half = len(some) // 2
            left[:0] = [some[:half], some[half:]]
        else:
            least = len(some[0]), why
    return unasked
