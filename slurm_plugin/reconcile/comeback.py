"""Jobs that come back, and the nodes that are prepared for them before they do (make before break, DESIGN §5).

A job comes back when

- it runs, can be requeued, and one of its nodes is *doomed*: reclaimed, silent for ``silent_prepare``, lost, or the job is preempted;
- or it was requeued and waits for the begin time that Slurm gave it (``waits_for_begin_time``), or for its prepared nodes.

Each such job is dealt as many nodes as it needs, in this order: nodes already prepared for it, its own nodes that are not doomed, idle
nodes that nobody else was dealt, and last, nodes that are off and are powered up now. A job whose need can't be met in full gets nothing
powered up: Slurm will see to it when its begin time comes. One prepared node per node needed; each is in the ledger.

    prepared node                                       done
    --------------------------------------------------  -----------------------------------------------------------------
    its job runs on it                                  used
    its job still comes back; the node boots or is idle kept (power_up again where Slurm shows nothing of it); told idle again, so that
                                                        SuspendTime, if it is short, does not end it
    down, doomed, drained, or taken by another job      lost: another one is prepared in the same pass
    its job ended, or runs without it                   released: powered down if it is idle or boots, unless another job waits

A waiting job is started once all the nodes dealt to it are up and idle, so that it never enters CONFIGURING. A job in its first attempt
is never touched, nor one whose begin time is not Slurm's own (then it lies further off than any requeue puts it).

Slurm takes whichever idle nodes it likes. So a job whose wrapper left a node that goes away (its comment names it, job_wrapper.run.departing)
is not started, nor dealt that node, while Slurm could use it: its agent's drain is on its way, or the node is gone before Slurm's own begin time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from job_wrapper.comments import left_nodes
from slurm_plugin.actions import Action, EndReplacement, KeepIdle, PowerDown, PowerUp, StartNow
from slurm_plugin.ledger_records import TOLD_NO_CAPACITY, WAIT_FORGOTTEN, Replacement
from slurm_plugin.reconcile.costs import over_limit
from slurm_plugin.reconcile.fitting import fitting_nodesets
from slurm_plugin.reconcile.flags import BUSY, Phase, bootable, down, ready
from slurm_plugin.reconcile.index import ACTIVE, Index
from slurm_plugin.reconcile.jobs import our_partitions
from slurm_plugin.reconcile.reclaim import being_reclaimed
from slurm_plugin.reconcile.view import View
from slurm_plugin.reconcile.zones import FREE, Bound, places, together
from slurm_plugin.slurm.records import Job, Node

LONGEST_DELAY = 301.0
"""A requeue's begin time lies cred_expire (default 120 s) + 1 s after it; a longer one was somebody's own choice."""
WAITS_FOR_NODES = ("Resources", "Priority")
SETTLED = 10.0
"""Seconds after which slurmctld, started again, has heard from all nodes that answer."""
REVOKED = 2.0
"""Seconds after a requeue in which the nodes that the job ran on are left alone by it: whole seconds count, and the order to end may take a moment."""
LEFT_FOR = 300.0
"""Seconds for which a node that its job left is avoided by that job: every cloud's notice is over by then, or was withdrawn."""
POWER_UP_SHOWS = 30.0
"""Seconds within which Slurm must show a power_up."""


def waits_for_begin_time(view: View, job: Job) -> bool:
    """Requeued, and waiting for nothing but the begin time that the requeue gave it (or still completing before that)."""
    if not job.has("PENDING") or job.restart_count < 1 or not job.batch:
        return False
    seen = view.seen.get(job.job_id)
    if seen is not None and seen.restart_count >= job.restart_count and not _settled(view):
        return False  # slurmctld, killed just after it, has forgotten that start
    if job.has("COMPLETING"):
        return True
    return (
        job.priority > 0
        and job.reason in ("BeginTime", "None", "")
        and job.eligible_time > view.now
        and job.eligible_time - job.submit_time <= LONGEST_DELAY
    )


def _settled(view: View) -> bool:
    """Whether slurmctld has answered for so long that its nodes have registered, and that it has ended what they still ran.

    Slurm's commands wait for one that is started again at once, so all passes may have been answered.
    """
    since, began = view.boots.answers_since, view.boots.slurmctld_began
    return since is not None and view.now - max(since, began or since) >= SETTLED


def _completing_only(job: Job) -> bool:
    """22.05 shows a requeued job that still completes as COMPLETING alone: it may come back or be over, so nothing is begun or given up."""
    return job.has("COMPLETING") and not job.has("RUNNING", "PENDING")


def decide_comeback(view: View, index: Index) -> Iterator[Action]:
    """Replacements and begin times."""
    if view.nodes is None or view.jobs is None:
        return
    yield from _Dealer(view, index, view.nodes, view.jobs).deal()


class _Dealer:
    """One pass's dealing: each node goes to one job at most."""

    def __init__(self, view: View, index: Index, nodes: Mapping[str, Node], jobs: tuple[Job, ...]) -> None:
        self.view, self.index, self.jobs = view, index, jobs
        self.nodes = {name: nodes[name] for name in view.policy.nodeset_of if name in nodes}
        self.doomed = {name for name, node in self.nodes.items() if self._doomed(node)}
        self.prepared: dict[int, list[Replacement]] = defaultdict(list)
        for replacement in view.replacements:
            self.prepared[replacement.job_id].append(replacement)
        self.taken: dict[str, int] = {}
        """Node to the job that it was dealt to."""
        self.over_limit = over_limit(view, index)
        self.ready: dict[str, dict[str, None]] = defaultdict(dict)
        """Idle nodes that nobody was dealt yet, by nodeset."""
        self.off: dict[str, dict[str, None]] = defaultdict(dict)
        """The same for nodes that are off; those whose name is free come first."""
        self.awaited = {
            name
            for job in jobs
            if job.has("PENDING") and job.priority > 0 and job.reason in WAITS_FOR_NODES
            for name in job.partitions
        }
        """Partitions in which a job waits for nodes."""
        kept = {r.node for r in view.replacements}
        not_free: list[str] = []
        for name, node in self.nodes.items():
            if name in kept or name in self.doomed or index.jobs_on.get(name):
                continue
            if ready(node) and not index.silent_for(name):
                self.ready[view.policy.nodeset_of[name]][name] = None
            elif bootable(node):
                if index.name_is_free(name):
                    self.off[view.policy.nodeset_of[name]][name] = None
                else:
                    not_free.append(name)
        for name in not_free:
            self.off[view.policy.nodeset_of[name]][name] = None

    def deal(self) -> Iterator[Action]:
        """All jobs, the most urgent first."""
        ours = our_partitions(self.view)
        coming = [job for job in self.jobs if self._comes_back(job) and not ours.isdisjoint(job.partitions)]
        coming.sort(key=lambda job: (not job.has("PENDING"), -job.priority, job.job_id))
        for job in coming:
            yield from self._serve(job)
        yield from self._give_up()
        served = {job.job_id for job in coming}
        for job_id, replacements in self.prepared.items():
            if job_id not in served:
                for replacement in replacements:
                    yield from self._release(replacement)

    def _doomed(self, node: Node) -> bool:
        if down(node):
            return True
        if self.index.phase(node.name) is not Phase.UP:
            return False  # one that boots gets another machine under the same name
        current = self.index.current(node.name)
        return (
            being_reclaimed(self.view, self.index, node)
            or self.index.silent_for(node.name) >= self.view.policy.silent_prepare
            or (current is not None and self.index.going(current))
        )

    def _comes_back(self, job: Job) -> bool:
        if not job.batch or not job.requeue or job.job_id in self.over_limit:
            return False
        if job.has("PENDING"):
            # Started already, or its time has come: what was prepared for it is kept for it until it runs.
            return waits_for_begin_time(self.view, job) or (
                job.job_id in self.prepared and job.restart_count > 0 and job.priority > 0
            )
        if not job.has(*ACTIVE) or not any(name in self.nodes for name in job.nodes):
            return False
        if _completing_only(job):
            return job.job_id in self.prepared
        return bool(self._preempted(job)) or any(name in self.doomed for name in job.nodes)

    def _preempted(self, job: Job) -> bool:
        if not job.running or not job.preempt_time or job.preempt_time > self.view.now + 1:
            return False
        partition = self.view.partitions.get(job.partition)
        return partition is None or partition.preempt_mode not in ("CANCEL", "SUSPEND")

    # --- one job ------------------------------------------------------------------------------------------------------

    def _serve(self, job: Job) -> Iterator[Action]:
        need = max(1, job.node_count)
        dealt: list[str] = []
        for replacement in self.prepared.get(job.job_id, ()):
            outcome = self._state_of(replacement, job)
            if outcome:
                yield EndReplacement(job.job_id, replacement.node, outcome)
            elif len(dealt) < need:
                dealt.append(replacement.node)
            else:
                yield from self._release(replacement)
        if not job.has("PENDING") and not self._preempted(job):
            dealt += [n for n in job.nodes if n in self.nodes and n not in self.doomed and n not in dealt][
                : need - len(dealt)
            ]
        fitting = fitting_nodesets(self.view, job)
        waits, left = waits_for_begin_time(self.view, job), self._left(job)
        for pool in (self.ready, self.off):
            bound = self._bound(job, fitting, dealt)
            chosen = self._choose(job, fitting, pool, need - len(dealt), bound, left, off=pool is self.off)
            if pool is self.off:
                if len(dealt) + len(chosen) < need or (job.has("PENDING") and not waits) or _completing_only(job):
                    chosen = []
                for name in chosen:
                    yield PowerUp(name, job.job_id, job.name_id, job.restart_count, self._because(job))
            for name in chosen:
                del pool[self.view.policy.nodeset_of[name]][name]
            dealt += chosen
        self.taken.update(dict.fromkeys(dealt, job.job_id))
        for replacement in self.prepared.get(job.job_id, ()):
            node = self.nodes.get(replacement.node)
            if replacement.node in dealt and node is not None and bootable(node):
                yield PowerUp(replacement.node, job.job_id, job.name_id, job.restart_count, replacement.because)
        if waits or not job.has("PENDING"):  # not for one that waits for something else: that may take days
            idle_told = self._idle_told(job)
            for name in dealt:
                if ready(self.nodes[name]) and self.view.now - self.nodes[name].last_busy >= idle_told:
                    yield KeepIdle(name)
        if (
            waits
            and job.reason == "BeginTime"
            and not job.has("COMPLETING")
            and len(dealt) >= need
            and all(ready(self.nodes[name]) and not self.index.silent_for(name) for name in dealt)
            and not self._too_soon(job, dealt)
            and not any(ready(self.nodes[name]) for name in left)
        ):
            yield StartNow(job.job_id, job.name_id, job.restart_count, tuple(dealt))

    def _idle_told(self, job: Job) -> float:
        """Idle time after which its nodes are told that they are idle, in seconds: a third of SuspendTime, which is the highest of a node's partitions."""
        shown = [self.view.partitions[name].suspend_time for name in job.partitions if name in self.view.partitions]
        unknown = self.view.policy.idle_told
        return min((unknown if time is None else time / 3 for time in shown), default=unknown)

    def _too_soon(self, job: Job, dealt: list[str]) -> bool:
        """Whether a node that it ran on may take its next launch for one that is revoked.

        A slurmd refuses credentials made up to the second in which the attempt before was ended ("Job credential revoked"), and
        slurmctld ends the job for that: FAILED, for good (22.05.8, 24.11.5; SLURM_FACTS R1). A requeue sets the submit time. It counts from
        the beginning of the look: what Slurm tells of the nodes may be older than what it tells of the job, and not know of a drain yet.
        """
        seen = self.view.seen.get(job.job_id)
        returns = seen is None or not seen.nodes or not set(seen.nodes).isdisjoint(dealt)
        return returns and self.view.as_of < job.submit_time + REVOKED

    def _left(self, job: Job) -> frozenset[str]:
        """Nodes that it ran on and left because they go away. Not one that has another machine since."""
        told, seen = left_nodes(job.comment), self.view.seen.get(job.job_id)
        if told is None or not job.has("PENDING") or abs(self.view.now - told[1]) > LEFT_FOR:  # by the node's clock
            return frozenset()
        up = {
            n for n in told[0] if n in self.nodes and self.index.phase(n) is Phase.UP and (not seen or n in seen.nodes)
        }
        newer = {n for n in up if (current := self.index.current(n)) is not None and current.created > told[1] + 1}
        return frozenset(up - newer)

    def _because(self, job: Job) -> str:
        lost = [name for name in job.nodes if name in self.doomed]
        if job.has("PENDING"):
            seen = self.view.seen.get(job.job_id)
            return f"requeued from {', '.join(seen.nodes)}" if seen else "requeued"
        if self._preempted(job):
            return "preempted"
        node = self.nodes[lost[0]]
        what = "does not answer"
        if being_reclaimed(self.view, self.index, node):
            what = "reclaimed"
        elif down(node) or self.index.silent_for(node.name) < self.view.policy.silent_prepare:
            what = "lost"
        return f"{', '.join(lost)} {what}"

    def _choose(
        self,
        job: Job,
        fitting: list[str],
        pool: dict[str, dict[str, None]],
        need: int,
        bound: Bound,
        left: frozenset[str],
        *,
        off: bool,
    ) -> list[str]:
        """``bound``: where they must be, or be bought. ``left``: see ``_left``."""
        chosen: list[str] = []
        partitions = job.partitions
        for nodeset in fitting:
            if len(chosen) >= need:
                break
            if off and not bound.allowed(self.view, self.index.offers.of(nodeset, job).ready):
                continue
            for name in pool.get(nodeset, ()):
                if len(chosen) >= need:
                    break
                if partitions.isdisjoint(self.nodes[name].partitions):
                    continue
                if (
                    name in left
                    or name in job.excluded_nodes
                    or (job.required_nodes and name not in job.required_nodes)
                ):
                    continue
                if not off and bound.places and not self._stands(name, bound):
                    continue
                chosen.append(name)
        return chosen

    # --- one zone -----------------------------------------------------------------------------------------------------

    def _bound(self, job: Job, fitting: list[str], dealt: list[str]) -> Bound:
        """Where the rest of the job's nodes must be: beside those that it was dealt; with none yet, where most of the idle ones are."""
        if not fitting or not together(self.view, job, fitting[0]):
            return FREE
        if dealt:
            return places(self.view, self.index, dealt)
        idle = [name for nodeset in fitting for name in self.ready.get(nodeset, ())]
        found = places(self.view, self.index, idle).places
        if len(found) < 2:
            return FREE
        return Bound((max(found, key=lambda place: sum(self._stands(name, Bound((place,))) for name in idle)),))

    def _stands(self, name: str, bound: Bound) -> bool:
        return any(place in bound.places for place in places(self.view, self.index, (name,)).places)

    def _give_up(self) -> Iterator[Action]:
        """Idle nodes of a job of several whose others can't be had beside them, though elsewhere all of them could: left to a job that waits,
        if there is one, and else ended, so that the job is bought for as a whole."""
        for job in self.jobs:
            seen = self.view.seen.get(job.job_id)
            told = self.view.counters.get((f"job:{job.job_id}", TOLD_NO_CAPACITY))
            if seen is None or told is None or not job.has("PENDING") or self.view.now - told.last > WAIT_FORGOTTEN:
                continue
            if job.has("COMPLETING") or not together(self.view, job, seen.nodeset) or self._others_wait(job):
                continue
            idle = [
                name
                for name in seen.nodes
                if name in self.nodes and ready(self.nodes[name]) and self.taken.get(name, job.job_id) == job.job_id
            ]
            bound, buyable = places(self.view, self.index, idle), self.index.offers.of(seen.nodeset, job).ready
            if len(idle) >= job.node_count or not bound.places or not buyable or bound.allowed(self.view, buyable):
                continue
            for name in idle:
                yield PowerDown(
                    name, f"job {job.name_id} can't be completed in {bound.words()}: it is bought for elsewhere"
                )

    def _others_wait(self, job: Job) -> bool:
        wanted = job.partitions
        return any(
            other.job_id != job.job_id
            and other.has("PENDING")
            and other.priority > 0
            and other.reason in WAITS_FOR_NODES
            and not wanted.isdisjoint(other.partitions)
            for other in self.jobs
        )

    def _buys(self, nodeset: str, job: Job) -> bool:
        return bool(self.index.offers.of(nodeset, job).ready)

    # --- prepared nodes -----------------------------------------------------------------------------------------------

    def _state_of(self, replacement: Replacement, job: Job) -> str:
        """Why this prepared node is no longer one for its job; "" while it is."""
        name = replacement.node
        node = self.nodes.get(name)
        if not job.has("PENDING") and name in job.nodes:
            return "used"
        if node is None or down(node) or name in self.doomed or node.has("DRAIN", "POWER_DOWN"):
            return "lost"
        if any(other.job_id != job.job_id for other in self.index.jobs_on.get(name, ())):
            return "lost"
        phase = self.index.phase(name)
        if phase is Phase.GOING_OFF:
            return "lost"
        if phase is Phase.OFF and (
            self.view.now - replacement.created > POWER_UP_SHOWS
            or not self._buys(self.view.policy.nodeset_of[name], job)
        ):
            return "lost"
        return ""

    def _release(self, replacement: Replacement) -> Iterator[Action]:
        name = replacement.node
        node = self.nodes.get(name)
        job = self.index.job.get(replacement.job_id)
        if job is not None and job.has(*ACTIVE) and name in job.nodes:
            yield EndReplacement(replacement.job_id, name, "used")
            return
        # With a job waiting that may take it, it is left to Slurm, which ends it after SuspendTime if none does.
        surplus = node is not None and name not in self.taken and not self.awaited.intersection(node.partitions)
        if node is not None and surplus and not node.has(*BUSY) and not self.index.jobs_on.get(name):
            phase = self.index.phase(name)
            if phase in (Phase.COMING_UP, Phase.ASKED_UP):
                yield PowerDown(name, "no longer needed", force=True)
            elif phase is Phase.UP and not node.has("POWER_DOWN") and not down(node):
                yield PowerDown(name, "no longer needed")
        yield EndReplacement(replacement.job_id, name, "released")
