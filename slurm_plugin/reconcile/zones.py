"""Nodes of one job are bought in one zone, unless ``placement.across_zones`` allows otherwise. Pure.

What binds is where the job's other machines are: those of its nodes that run or boot, and those of nodes that are prepared for it. A machine that
goes away binds nothing. What is bought together needs no bound: clouds put a gang into one zone. Where the zone is left to the cloud (zone
``any``) a machine's own zone, as its listing tells it, is the bound, and is asked for by name.

Slurm knows no zones: idle nodes that it picks itself may lie in several, and then any of these will do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from slurm_plugin.cloud.provider import Offering
from slurm_plugin.config_providers import ANY_ZONE
from slurm_plugin.ledger_records import Intent
from slurm_plugin.reconcile.flags import down
from slurm_plugin.reconcile.index import Index
from slurm_plugin.reconcile.reclaim import being_reclaimed
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Job


@dataclass(frozen=True, slots=True)
class Place:
    """Where a machine is. ``zone`` is ``any`` where its cloud does not tell."""

    provider: str
    region: str
    zone: str

    def takes(self, offering: Offering) -> bool:
        """Whether the offering can be had there."""
        here = (offering.provider, offering.region) == (self.provider, self.region)
        return here and (offering.zone in (self.zone, *ANY_ZONE))


@dataclass(frozen=True, slots=True)
class Bound:
    """``places``: the machine is to be in one of them; none: anywhere. ``unknown``: a machine is so new that its place is not told yet."""

    places: tuple[Place, ...] = ()
    unknown: bool = False

    def allowed(self, view: View, ready: Iterable[str]) -> tuple[str, ...]:
        """Those offerings that can be had in one of the places, in the order given."""
        if not self.places:
            return tuple(ready)
        offerings = view.policy.offerings
        return tuple(i for i in ready if i in offerings and any(place.takes(offerings[i]) for place in self.places))

    def pins(self, view: View, allowed: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """(offering id, zone) of those that leave their zone to the cloud and are to be had in one all the same."""
        found = []
        for id_ in allowed:
            offering = view.policy.offerings.get(id_)
            if offering is None or offering.zone not in ANY_ZONE:
                continue
            zone = next((p.zone for p in self.places if p.takes(offering) and p.zone not in ANY_ZONE), "")
            found += [(id_, zone)] if zone else []
        return tuple(found)

    def words(self) -> str:
        """Where, for people."""
        return ", ".join(dict.fromkeys(place.zone for place in self.places))


FREE = Bound()


def bound_of(view: View, index: Index, job: Job | None, node: str) -> Bound:
    """What binds a machine that is bought for the job; ``node`` is the one that it is for."""
    nodeset = view.policy.nodeset_of.get(node, "")
    if job is None or not together(view, job, nodeset):
        return FREE
    return places(view, index, mates(view, index, job) - {node})


def together(view: View, job: Job, nodeset: str) -> bool:
    """Whether the job's nodes belong into one zone."""
    facts = view.policy.nodesets.get(nodeset)
    return job.node_count > 1 and facts is not None and not facts.rules.across_zones


def mates(view: View, index: Index, job: Job) -> frozenset[str]:
    """The job's nodes, those prepared for it, and, while it waits, those that it ran on and nobody else has taken."""
    found = {r.node for r in view.replacements if r.job_id == job.job_id} | set(job.nodes)
    if job.has("PENDING") and (seen := view.seen.get(job.job_id)) is not None:
        found |= {name for name in seen.nodes if all(o.job_id == job.job_id for o in index.jobs_on.get(name, ()))}
    return frozenset(found)


def places(view: View, index: Index, names: Collection[str]) -> Bound:
    """Where the machines of these nodes are, those left out that go away."""
    found: dict[Place, None] = {}
    unknown = False
    for name in sorted(names):
        intent, node = index.current(name), index.node(name)
        if intent is None or index.going(intent) or index.silent_for(name) >= view.policy.silent_prepare:
            continue
        if node is None or down(node) or being_reclaimed(view, index, node):
            continue
        place = place_of(view, index, intent)
        if place is None:
            unknown = True
        else:
            found[place] = None
    return Bound(tuple(found), unknown and not found)


def place_of(view: View, index: Index, intent: Intent) -> Place | None:
    """Where the intent's machine is, or will be; None where only a listing to come will tell."""
    offering = view.policy.offerings.get(intent.offering_id)
    machine = index.machine(intent)
    if offering is None:
        return None
    if offering.zone not in ANY_ZONE:
        return Place(offering.provider, offering.region, offering.zone)
    if machine is None:
        return None
    return Place(offering.provider, offering.region, machine.zone or ANY_ZONE[0])
