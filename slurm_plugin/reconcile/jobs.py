"""Jobs that Slurm does not bring back by itself, or holds, or forgets to preempt.

    the job                                                        done
    -------------------------------------------------------------  -----------------------------------------------------------
    running, preempted, and its grace is long over (R29)           requeue: Slurm never would
    running, and one of its nodes has booted since it started      requeue: its processes are gone, and Slurm may not notice
    running, its run ended, slurmctld was killed meanwhile         ``requeue.forgotten``: requeue, or hold
    ended within requeue_window, its run's log looked up           what ``requeue.decide`` says
    PENDING, held by Slurm after a failed launch                   release, 3 times, then report (cases 23)
    PENDING, priority 0, BadConstraints after a restart (R3)       release, ever more seldom, for a day, and report (cases 21)
    running for ``WELL`` since it was released                     count its releases anew
    PENDING, no capacity for it since queue_timeout                comment, AdminComment and scancel: CapacityUnavailable
    running, or held by anybody                                    it waits for capacity no longer
    active on nodes of ours                                        remember where
    no longer in Slurm's memory                                    forget

Only jobs in partitions that have nodes of ours are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from job_wrapper.counted import counted
from slurm_plugin import requeue
from slurm_plugin.actions import (
    Action,
    CancelJob,
    ForgetJob,
    ForgetReleases,
    ReleaseJob,
    RememberJob,
    Report,
    RequeueJob,
    WaitEnds,
)
from slurm_plugin.ledger_records import RELEASED, TOLD_NO_CAPACITY, TRIED_AGAIN, WAIT_FORGOTTEN, WAITING
from slurm_plugin.placement import Passed
from slurm_plugin.reconcile.index import ACTIVE, Index
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Job

GRACE_MARGIN = 30.0
"""Slurm itself notices the end of a grace up to 30 s late (SLURM_FACTS §2.2)."""
BOOT_MARGIN = 5.0
"""Seconds: slurmctld reckons a node's boot from an uptime in whole seconds."""
CAPACITY_UNAVAILABLE = "CapacityUnavailable"
RELEASE_WAIT = 10.0
"""Seconds between two releases of a job, doubled each time."""
MAX_RELEASES = 3
"""After failed launches: each costs a node its start."""
LONGEST_RELEASE_WAIT = 300.0
"""Seconds, out of BadConstraints: that costs nothing, as Slurm merely looks again whether any node fits."""
MAX_TRIES = 300
"""Out of BadConstraints: about a day. Whatever is amiss is no lost node then."""
SAID_AT = 3
"""Releases out of BadConstraints, in vain, after which the user is told."""
WELL = 600.0
"""Seconds for which an attempt must run to count as well started: no launch takes as long to fail."""


def decide_jobs(view: View, index: Index) -> Iterator[Action]:
    """All that concerns jobs, but not preparing nodes for them."""
    if view.jobs is None:
        return
    partitions = our_partitions(view)
    for job in view.jobs:
        if partitions.isdisjoint(job.partitions):
            continue
        # Not while it completes: 22.05 then shows COMPLETING alone, with the restart count of the attempt to come.
        if job.has(*ACTIVE) and not job.has("PENDING", "COMPLETING"):
            yield from _remember(view, job)
        held = job.has("PENDING") and job.priority == 0
        if (job.running or held) and (f"job:{job.job_id}", WAITING) in view.counters:
            yield WaitEnds(job.job_id)
        if job.running:
            released = any((f"job:{job.job_id}", kind) in view.counters for kind in (RELEASED, TRIED_AGAIN))
            if released and 0 < job.start_time < view.now - WELL:
                yield ForgetReleases(job.job_id)
            yield from _overdue(view, job)
            yield from _rebooted(view, job)
            yield from _forgotten(view, job)
        elif job.has("PENDING"):
            yield from _held(view, job)
            yield from _waited(view, index, job)
        elif requeue.may_need_help(job):
            yield from _ended(view, job)
    for job_id in view.seen:
        if job_id not in index.job:
            yield ForgetJob(job_id)


def our_partitions(view: View) -> frozenset[str]:
    """Partitions that have nodes of ours, by Slurm's own records."""
    if view.nodes is None:
        return frozenset(p.name for p in view.partitions.values() if any(n in view.policy.nodeset_of for n in p.nodes))
    found: set[str] = set()
    for name in view.policy.nodeset_of:
        if name in view.nodes:
            found.update(view.nodes[name].partitions)
    return frozenset(found)


def _remember(view: View, job: Job) -> Iterator[Action]:
    nodeset = next((view.policy.nodeset_of[n] for n in job.nodes if n in view.policy.nodeset_of), None)
    if nodeset is None:
        return
    seen = view.seen.get(job.job_id)
    if seen is None or (seen.restart_count, seen.nodes) != (job.restart_count, job.nodes):
        yield RememberJob(job.job_id, job.restart_count, nodeset, job.nodes)


def _overdue(view: View, job: Job) -> Iterator[Action]:
    """R29: preempted while CONFIGURING; "Configuration complete" gave it new times, and nobody comes back to it."""
    if not job.preempt_time or not job.requeue or not job.batch or job.has("CONFIGURING"):
        return
    partition = view.partitions.get(job.partition)
    if partition is None or partition.preempt_mode in ("CANCEL", "SUSPEND"):
        return
    over = job.preempt_time + partition.grace_time
    if job.start_time < job.preempt_time and job.end_time:
        # Its times are as the preemption left them: end_time is the end of the grace, a QOS's included.
        over = max(over, job.end_time)
    if view.now > over + GRACE_MARGIN:
        yield RequeueJob(job.job_id, job.name_id, job.restart_count, "preempted, and its grace time is long over")


def _rebooted(view: View, job: Job) -> Iterator[Action]:
    """A node that boots by itself under a job registers as if nothing were. slurmctld (22.05, 24.11; ReturnToService=2) minds only that a job's
    first node knows nothing of it, and not always: seen to show the job running for ever. Both times must be later than the job's start: the
    boot is told by slurmctld's clock, slurmd's start by the node's, so no clock that is set makes a job look lost.
    """
    if not (job.batch and job.requeue and job.start_time):
        return
    started = job.start_time + BOOT_MARGIN
    for name in job.nodes:
        node = (view.nodes or {}).get(name)
        if node is not None and node.up and min(node.boot_time, node.slurmd_start_time) > started:
            yield RequeueJob(job.job_id, job.name_id, job.restart_count, f"{name} has booted since the job started")
            return


def _forgotten(view: View, job: Job) -> Iterator[Action]:
    if not requeue.may_be_forgotten(job, view.boots.slurmctld_began, view.now):
        return
    decision = requeue.forgotten(job, view.runs.get(job.job_id, ()), view.now)
    if isinstance(decision, requeue.Requeue | requeue.Hold):
        hold = isinstance(decision, requeue.Hold)
        yield RequeueJob(job.job_id, job.name_id, job.restart_count, decision.text, hold=hold)


def _ended(view: View, job: Job) -> Iterator[Action]:
    runs = view.runs.get(job.job_id)
    if runs is None or view.now - job.end_time > view.policy.requeue_window:
        return
    counter = view.counters.get((f"job:{job.job_id}", requeue.never_started_counter(job, runs)))
    decision = requeue.decide(job, runs, view.policy.limits, never_started=counter.count if counter else 0)
    if isinstance(decision, requeue.Requeue):
        yield RequeueJob(job.job_id, job.name_id, job.restart_count, decision.text, counter=decision.counter)
    elif isinstance(decision, requeue.Hold):
        yield RequeueJob(job.job_id, job.name_id, job.restart_count, decision.text, hold=True)
    elif isinstance(decision, requeue.Fail):
        yield Report(job.job_id, f"{decision.reason}:{job.restart_count}", f"{decision.reason}: {decision.text}")


def _waited(view: View, index: Index, job: Job) -> Iterator[Action]:
    """Cancelled only while it is still capacity that it waits for: tried in vain within the hour, or nothing can be tried at all."""
    since = view.counters.get((f"job:{job.job_id}", WAITING))
    waited = view.now - since.last if since is not None else 0.0
    if waited <= index.shortest_queue_timeout or job.priority == 0 or job.has("COMPLETING"):
        return
    partitions = job.partitions
    nodesets = {
        nodeset
        for name, nodeset in view.policy.nodeset_of.items()
        if (node := index.node(name)) is not None and not partitions.isdisjoint(node.partitions)
    }
    told = view.counters.get((f"job:{job.job_id}", TOLD_NO_CAPACITY))
    tried = told is not None and view.now - told.last <= WAIT_FORGOTTEN
    if not nodesets or not (tried or all(not index.offers.loosest(name).ready for name in nodesets)):
        return
    if waited > max(view.policy.nodesets[name].rules.queue_timeout for name in nodesets):
        passed = [choice for name in sorted(nodesets) for choice in index.offers.of(name, job).passed]
        # Rather a cloud's words than a rule's.
        first = min(passed, key=lambda choice: choice.kind is Passed.RULE, default=None)
        last = f", the last word of {first.offering_id}: {first.why}" if first else ""
        kept = f"what it has saved is kept: spotburst describe {job.name_id}"
        text = f"no capacity for {waited / 3600:.1f} h{last}; {kept}"
        yield CancelJob(job.job_id, job.name_id, job.restart_count, CAPACITY_UNAVAILABLE, text)


def _held(view: View, job: Job) -> Iterator[Action]:
    reason = re.sub(r"[^a-z]+", "_", job.reason.lower())
    if reason.startswith(("launch_failed_requeued_held", "launch_failure_limit_exceeded", "jobholdmaxrequeue")):
        yield from _released(view, job, "Slurm held it after a failed launch", RELEASED, MAX_RELEASES)
    elif reason == "badconstraints" and job.priority == 0 and job.restart_count > 0 and job.job_id in view.seen:
        what = "Slurm left it in BadConstraints after it lost its node"
        yield from _released(view, job, what, TRIED_AGAIN, MAX_TRIES)


def _released(view: View, job: Job, what: str, counter: str, most: int) -> Iterator[Action]:
    told = view.counters.get((f"job:{job.job_id}", counter))
    count = told.count if told else 0
    if count >= most:
        text = f"{what}; released {counted(count, 'time')} already, so it stays held"
        yield Report(job.job_id, f"held:{job.restart_count}", text)
        return
    if counter == TRIED_AGAIN and count >= SAID_AT:
        text = f"{what}, and no node of its partition fits it still; it is tried again every {LONGEST_RELEASE_WAIT / 60:.0f} minutes at the latest"
        yield Report(job.job_id, f"in-vain:{job.restart_count}", text)
    wait = min(RELEASE_WAIT * 2.0 ** min(count - 1, 10), LONGEST_RELEASE_WAIT)
    if told is None or view.now - told.last >= wait:
        yield ReleaseJob(job.job_id, job.name_id, job.restart_count, what, counter)
