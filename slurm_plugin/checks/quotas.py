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


def quotas(wanted: Iterable[Wanted], ways: Mapping[str, Ways]) -> Iterator[Finding]:
    """``ways``: by offering id; of an offering that is not there nothing is said."""
    shared: dict[Quota, dict[str, float]] = {}
    for one in wanted:
        for take, offerings in _tightest(one, ways).items():
            if take.fits >= one.nodes:
                taken = shared.setdefault(take.quota, {})
                taken[one.nodeset] = max(taken.get(one.nodeset, 0.0), take.each * one.nodes)
                continue
            where = f"nodesets.{one.nodeset}: {', '.join(offerings)}: {_limit(take.quota)}, and a machine takes {take.each:g}"
            more = f"{take.quota.more}: {take.each * one.nodes:g} are enough for all {one.nodes} nodes"
            if take.fits < 1:
                yield fault(WHAT, f"{where}: none can ever start", f"{more}; or {OTHERWISE}")
            else:
                yield note(WHAT, f"{where}: {take.fits} of {one.nodes} nodes fit", more)
    for quota, taken in shared.items():
        if len(taken) > 1 and sum(taken.values()) > quota.limit:
            nodesets = ", ".join(taken)
            text = f"nodesets {nodesets}: {_limit(quota)}, and all their nodes together take {sum(taken.values()):g}"
            yield note(WHAT, text, quota.more)


def _tightest(one: Wanted, ways: Mapping[str, Ways]) -> dict[Take, list[str]]:
    """What is used up first in the best way of each offering, with the ids of the offerings of which that is so."""
    found: dict[Take, list[str]] = {}
    for offering in one.offerings:
        tight = [min(way, key=lambda take: take.fits) for way in ways.get(offering.id, ()) if way]
        if tight:
            found.setdefault(max(tight, key=lambda take: take.fits), []).append(offering.id)
    return found


def _limit(quota: Quota) -> str:
    used = f" ({quota.used:g} in use now)" if quota.used is not None else ""
    return f"{quota.name} in {quota.place} is {quota.limit:g} {quota.unit}{used}"
