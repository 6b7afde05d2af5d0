"""Whether the accounts may have what burst.yaml's nodes take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slurm_plugin.checks.finding import Finding, fault, note
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.cloud.quotas import Quota, Take, Ways

WHAT = "quotas"
OTHERWISE = "take the offering out of burst.yaml, or choose another instance_type or region"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A nodeset: how many nodes, and what can be bought for them."""

    nodeset: str
    nodes: int
    offerings: tuple[Offering, ...]


def quotas(
    wanted: Iterable[Wanted], ways: Mapping[str, Ways], machines: Mapping[str, int] | None = None
) -> Iterator[Finding]:
    """``ways``: by offering id; of an offering that is not there nothing is said.

    ``machines``: how many this cluster has now, by offering id; what is in use beyond these is others'. None: not known, and nothing is
    concluded from what is in use.
    """
    others = _others(ways, machines)
    shared: dict[Quota, dict[str, float]] = {}
    for one in wanted:
        for take, offerings in _tightest(one, ways, others).items():
            room = _room(take, others)
            if room >= one.nodes:
                taken = shared.setdefault(take.quota, {})
                taken[one.nodeset] = max(taken.get(one.nodeset, 0.0), take.each * one.nodes)
                continue
            where = f"nodesets.{one.nodeset}: {', '.join(offerings)}: {_limit(take.quota)}, and a machine takes {take.each:g}"
            more = f"{take.quota.more}: {take.each * one.nodes:g} are enough for all {one.nodes} nodes"
            if take.fits < 1:
                yield fault(WHAT, f"{where}: none can ever start", f"{more}; or {OTHERWISE}")
            else:
                beside = f" beside what others use ({others[take.quota]:g})" if room < take.fits else ""
                yield note(WHAT, f"{where}: {room} of {one.nodes} nodes fit{beside}", more)
    for quota, taken in shared.items():
        if len(taken) > 1 and sum(taken.values()) > quota.limit - others.get(quota, 0.0):
            nodesets = ", ".join(taken)
            text = f"nodesets {nodesets}: {_limit(quota)}, and all their nodes together take {sum(taken.values()):g}"
            yield note(WHAT, text, quota.more)


def _others(ways: Mapping[str, Ways], machines: Mapping[str, int] | None) -> dict[Quota, float]:
    """What is in use of each quota beside this cluster's machines. Of alternatives they are taken to be of the first."""
    if machines is None:
        return {}
    own: dict[Quota, float] = {}
    for id_, count in machines.items():
        for take in next(iter(ways.get(id_, ())), ()):
            own[take.quota] = own.get(take.quota, 0.0) + take.each * count
    all_of = {take.quota for some in ways.values() for way in some for take in way}
    return {quota: max(0.0, quota.used - own.get(quota, 0.0)) for quota in all_of if quota.used is not None}


def _room(take: Take, others: Mapping[Quota, float]) -> int:
    """How many machines the quota is enough for, beside others' use."""
    return int(max(0.0, take.quota.limit - others.get(take.quota, 0.0)) // take.each)


def _tightest(one: Wanted, ways: Mapping[str, Ways], others: Mapping[Quota, float]) -> dict[Take, list[str]]:
    """What is used up first in the best way of each offering, with the ids of the offerings of which that is so."""

    def room(take: Take) -> tuple[int, int]:
        return _room(take, others), take.fits

    found: dict[Take, list[str]] = {}
    for offering in one.offerings:
        tight = [min(way, key=room) for way in ways.get(offering.id, ()) if way]
        if tight:
            found.setdefault(max(tight, key=room), []).append(offering.id)
    return found


def _limit(quota: Quota) -> str:
    used = f" ({quota.used:g} in use now)" if quota.used is not None else ""
    return f"{quota.name} in {quota.place} is {quota.limit:g} {quota.unit}{used}"
