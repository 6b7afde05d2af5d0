"""What jobs cost, and runs that end because they have cost enough.

    the job                                                         done
    --------------------------------------------------------------  ---------------------------------------------------------
    active on a node of ours, not charged for it                    its charge begins, at its machine's price of now
    charged for a node that it has left                             its charge ends
    it has a limit, runs, and would cross it before it has saved    asked to be suspended: an urgent checkpoint, then held
    … and still runs ``COST_GRACE`` after the first asking          requeued held (which gives it Slurm's KillWait), else ended
    … and its limit is raised before it is held                     released: it is not to be held at its next requeue
    its nodes boot, and the attempt would cross the limit           requeued held, else ended
    it waits, and its next attempt would cross the limit            held
    its own limit can't be read                                     said to it once

An attempt counts as long as it takes until it has something to show: ``Policy.least_attempt``, or its time limit where that is shorter. What
has no known price is not bought for a job with a limit (``placement.choose``); a charge that has none all the same is not in the sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_plugin.actions import (
    Action,
    ChargeBegins,
    ChargeEnds,
    EndJob,
    HoldJob,
    ReleaseJob,
    Report,
    RequeueJob,
    SuspendJob,
)
from slurm_plugin.cloud.provider import Market
from slurm_plugin.ledger_records import COST_ASKED, COST_RAISED, Charge, IntentState, Spent
from slurm_plugin.placement.limit import WORD, CostLimit, cost_limit
from slurm_plugin.reconcile.index import ACTIVE, Index
from slurm_plugin.reconcile.jobs import our_partitions
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Job

COST_LIMIT = "CostLimit"
COST_GRACE = 300.0
"""Seconds that a job has for its last checkpoint once it was asked."""
SAVING = 60.0
"""Seconds of cost that are kept back for that checkpoint."""
NOTHING = Spent(0.0, 0.0, False)
NO_LIMIT = CostLimit()


def decide_costs(view: View, index: Index) -> Iterator[Action]:
    """All that concerns money."""
    if view.jobs is None:
        return
    yield from _charges(view, index)
    partitions = our_partitions(view)
    for job in view.jobs:
        if partitions.isdisjoint(job.partitions) or job.has("COMPLETING"):
            continue
        limit = limit_of(view, index, job)
        if limit.fault and job.has("PENDING", *ACTIVE):
            yield Report(job.job_id, "cost-limit-unread", limit.fault)
        if limit.limit is not None and exceeds(view, index, job, limit):
            yield from _stop(view, index, job, limit)
        elif job.running and job.priority == 0:
            yield from _let_go(view, job, limit)


def over_limit(view: View, index: Index) -> frozenset[int]:
    """Jobs that get nothing more."""
    found = ((job, limit_of(view, index, job)) for job in view.jobs or ())
    return frozenset(job.job_id for job, limit in found if limit.limit is not None and exceeds(view, index, job, limit))


def limit_of(view: View, index: Index, job: Job) -> CostLimit:
    """The job's, and that of the nodeset that it runs or ran on."""
    if not index.limited and WORD not in job.comment:
        return NO_LIMIT
    policy = view.policy
    nodeset = next((policy.nodeset_of[n] for n in job.nodes if n in policy.nodeset_of), None)
    if nodeset is None and (seen := view.seen.get(job.job_id)) is not None:
        nodeset = seen.nodeset
    facts = policy.nodesets.get(nodeset or "")
    return cost_limit(job.comment, facts.rules if facts else None)


def exceeds(view: View, index: Index, job: Job, limit: CostLimit) -> bool:
    """Whether what is spent, with what must still be, is above the limit."""
    if limit.limit is None or not job.has("PENDING", *ACTIVE):
        return False
    spent = view.spent.get(job.job_id, NOTHING)
    if job.has("PENDING") or (job.has("CONFIGURING") and not spent.rate):
        # Once a boot is charged the attempt has begun, and may have what is left.
        return spent.paid + _next(view, index, job) > limit.limit
    return spent.paid + spent.rate * SAVING / 3600.0 >= limit.limit


def _next(view: View, index: Index, job: Job) -> float:
    """What an attempt costs at least, by the cheapest that may be bought for it now; 0 where nothing with a price may."""
    hours = min(view.policy.least_attempt, float(job.time_limit or view.policy.least_attempt)) / 3600.0
    names = frozenset(view.policy.nodeset_of[n] for n in job.nodes if n in view.policy.nodeset_of)
    if not names and (seen := view.seen.get(job.job_id)) is not None:
        names = frozenset((seen.nodeset,)) & frozenset(view.policy.nodesets)
    if not names:
        names = index.nodesets_of(job.partition)
    prices = [_price(view, id_) for name in names for id_ in index.offers.of(name, job).ready]
    return min(prices, default=0.0) * max(1, job.node_count) * hours


def _price(view: View, offering_id: str) -> float:
    return view.known.prices.get(offering_id) or 0.0


def _charges(view: View, index: Index) -> Iterator[Action]:
    active: set[tuple[int, int, str]] = set()
    for job in view.jobs or ():
        if not job.has(*ACTIVE) or job.has("PENDING"):
            continue
        for name in job.nodes:
            active.add((job.job_id, job.restart_count, name))
            if job.has("COMPLETING"):  # 22.05 then shows the restart count of the attempt to come
                active.add((job.job_id, job.restart_count - 1, name))
            elif (job.job_id, job.restart_count, name) not in view.charges:
                yield from _begin(view, index, job, name)
    for key, charge in view.charges.items():
        if key not in active:
            yield ChargeEnds(charge, _left(view, index.job.get(charge.job_id), charge))


def _begin(view: View, index: Index, job: Job, name: str) -> Iterator[Action]:
    current = index.current(name)
    if current is None or current.state is not IntentState.LIVE:
        return
    began = float(job.start_time) if 0 < job.start_time <= view.now else view.now
    offering = view.policy.offerings.get(current.offering_id)
    price = view.known.prices.get(current.offering_id)
    if price is None and offering is not None and offering.market is Market.RESERVATION:
        price = 0.0  # paid for already
    charge = Charge(job.job_id, job.restart_count, name, max(began, current.created))
    yield ChargeBegins(charge, current.offering_id, price)


def _left(view: View, job: Job | None, charge: Charge) -> float:
    """When: as Slurm tells where the manager has not seen it itself."""
    told = 0
    if job is not None:
        told = job.submit_time if job.restart_count > charge.restart_count else job.end_time
    return float(told) if charge.began < told <= view.now else view.now


def _stop(view: View, index: Index, job: Job, limit: CostLimit) -> Iterator[Action]:
    who = "the job's cost_limit, in its comment" if limit.of_job else "its nodeset's cost_limit"
    if job.has("PENDING"):
        if job.priority > 0:
            spent = view.spent.get(job.job_id, NOTHING).paid
            text = f"{COST_LIMIT}: {spent:.2f} of {limit.limit:g} spent, and another attempt would cost more ({who}); held, its checkpoints are kept"
            yield HoldJob(job.job_id, job.name_id, job.restart_count, text)
        return
    # What it has cost is left out of the words: they stay the same from pass to pass.
    can_wait = job.batch and job.requeue
    if job.has("CONFIGURING"):
        why = f"{COST_LIMIT}: this attempt would cost more than {limit.limit:g} ({who})"
        yield _away(job, why) if can_wait else EndJob(job.job_id, job.name_id, job.restart_count, why)
        return
    counter = f"{COST_ASKED}:{job.restart_count}:{limit.limit:g}"
    asked = view.counters.get((f"job:{job.job_id}", counter))
    if asked is None or view.now - asked.last < COST_GRACE:
        # Again and again: a program that has just begun has nothing to save yet, and says so.
        yield SuspendJob(
            job.job_id,
            job.name_id,
            job.restart_count,
            f"{COST_LIMIT}: {limit.limit:g} is all but spent ({who}); held after its checkpoint",
            counter,
        )
    else:
        why = f"{COST_LIMIT}: no checkpoint within {COST_GRACE:g} s ({who})"
        yield _away(job, why) if can_wait else EndJob(job.job_id, job.name_id, job.restart_count, why)


def _let_go(view: View, job: Job, limit: CostLimit) -> Iterator[Action]:
    """Asked to be suspended, and so marked as held, it may go on: else it would be held at its next requeue, whatever that is for. Once, since
    the hold after that is somebody else's."""
    name = f"job:{job.job_id}"
    raised = f"{COST_RAISED}:{job.restart_count}:{limit.limit}"
    was_asked = any(
        who == name and kind.startswith(f"{COST_ASKED}:{job.restart_count}:") for who, kind in view.counters
    )
    if was_asked and (name, raised) not in view.counters:
        yield ReleaseJob(job.job_id, job.name_id, job.restart_count, f"{COST_LIMIT}: it was raised", raised)


def _away(job: Job, why: str) -> RequeueJob:
    return RequeueJob(job.job_id, job.name_id, job.restart_count, why, hold=True)
