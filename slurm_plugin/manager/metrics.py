"""What Prometheus is told: what an operator would be woken for, and what he then looks at (docs/monitoring.md).

Names follow Prometheus' rules. Values of labels are the settings' own (providers, nodesets, partitions, offerings) and fixed words, so their number does
not grow with time; only the ids of jobs that run now are others, at most `JOBS` of them. Counters begin at 0 with the manager; what happened is counted from
the ledger's events, whoever wrote them.
"""

from __future__ import annotations

import math
from collections import Counter as Count
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from slurm_plugin.cloud.provider import RefusalKind
from slurm_plugin.ledger_offerings import LOST
from slurm_plugin.ledger_records import WAITING, Event, IntentState
from slurm_plugin.manager.saves import Saved
from slurm_plugin.placement import OfferingState, stands_against
from slurm_plugin.prices import offering_of
from slurm_plugin.reconcile.flags import Phase, down, phase
from slurm_plugin.reconcile.index import ACTIVE
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Node

JOBS = 200
"""Jobs that have a series of their own: those with the oldest checkpoints."""
OTHER = "other"
"""For what the settings do not name (any more)."""


class Metrics:
    """One registry. Called by the loop's thread; Prometheus' client lets any thread read."""

    def __init__(self, cluster: str, *, jobs: bool = True) -> None:
        """``jobs``: whether ids of jobs are told."""
        self.registry = registry = CollectorRegistry()
        self._tell_jobs = jobs
        self._restarts: dict[int, int] | None = None

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"spotburst_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"spotburst_{name}", text, labels, registry=registry)

        gauge("info", "The manager's version.", "cluster", "version").labels(
            cluster, metadata.version("spotburst")
        ).set(1)
        # The manager itself.
        self.passes = counter("passes_total", "Passes of the manager's loop.", "result")
        self.pass_seconds = Histogram(
            "spotburst_pass_duration_seconds", "How long passes took.", registry=registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 90),
        )  # fmt: skip
        self.last_pass = gauge("last_pass_timestamp_seconds", "When the last pass that did not fail ended.")
        self.faults = gauge("faults", "What the manager finds not well now, and says in its log.")
        self.ledger_bytes = gauge("ledger_size_bytes", "Size of the ledger, its write-ahead log included.")
        # What it stands on.
        self.slurmctld = gauge("slurmctld_up", "Whether slurmctld told nodes and jobs in the last pass.")
        self.store = gauge("checkpoint_store_up", "Whether the checkpoint store answered when it was last asked.")
        self.listing = gauge("cloud_listing_timestamp_seconds", "When the last good listing of a cloud's machines began.", "provider")  # fmt: skip
        # Nodes and machines.
        self.nodes = gauge("nodes", "Nodes of the settings, by power state; down and drained ones apart.", "nodeset", "state")  # fmt: skip
        self.silent = gauge("nodes_silent", "Nodes that are up by Slurm and can't be reached.")
        self.own_network = gauge(
            "own_network_suspect", "Whether no node at all can be reached, so that none is set down."
        )
        self.machines = gauge("machines", "Machines asked for and not seen to be gone.", "provider", "market", "state")
        self.unpriced = gauge(
            "machines_without_price", "Machines that are not in the cost rate: their price is not known."
        )
        self.cost = gauge("cost_per_hour", "What all machines cost an hour, in the currency of the prices.")
        self.cooling = gauge("offerings", "Offerings by what stands against them.", "provider", "state")
        # What happens.
        self.reclaims = counter("reclaims_total", "Nodes that a cloud told it takes back.", "nodeset")
        self.lost = counter("machines_lost_total", "Machines that were gone without the manager ending them.")
        self.set_down = counter("nodes_set_down_total", "Nodes that the manager set down, which requeues their jobs.", "nodeset")  # fmt: skip
        self.launched = counter("machines_launched_total", "Machines that a cloud accepted to make.", "provider")
        self.refused = counter(
            "launches_refused_total", "Machines that a cloud refused, by reason.", "provider", "reason"
        )
        self.notices = gauge("notices_open", "Reclaims told of and not over.")
        self.replacements = gauge("replacements_open", "Nodes prepared for jobs that lose theirs.")
        # Jobs.
        self.jobs = gauge("jobs", "Jobs in the partitions of the settings, by state.", "state")
        self.requeues = counter("requeues_total", "Restarts of jobs, as Slurm counts them.", "partition")
        self.starved = gauge("jobs_without_capacity", "Jobs that wait and for which no offering could be bought.")
        self.given_up = counter("jobs_given_up_total", "Jobs that the manager cancelled or held, since it may bring them back no more.")  # fmt: skip
        self.committed = Histogram(
            "spotburst_notice_to_commit_seconds", "From a notice or Slurm's signal to the checkpoint made for it.", registry=registry,
            buckets=(1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 300),
        )  # fmt: skip
        self.uncommitted = counter("interruptions_without_commit_total", "Attempts interrupted with a notice or signal and without a checkpoint for it.")  # fmt: skip
        self.unsaved = gauge("jobs_without_checkpoint", "Jobs that run and have no checkpoint yet.")
        self.oldest = gauge("oldest_checkpoint_timestamp_seconds", "Of the running jobs' newest checkpoints the oldest one's time; none without jobs.")  # fmt: skip
        # Not "job": Prometheus gives each series a label of that name, its scrape job's.
        self.checkpoint = gauge("job_checkpoint_timestamp_seconds", "When a running job's newest checkpoint was made.", "job_id")  # fmt: skip
        self.interval = gauge("job_checkpoint_interval_seconds", "The interval between checkpoints that is in force for it.", "job_id")  # fmt: skip
        self._clear_counters()

    def _clear_counters(self) -> None:
        """A series that is there from the start: a first increase from nothing would be seen by no ``increase()``."""
        for result in ("done", "failed"):
            self.passes.labels(result)

    def known(self, nodesets: Iterable[str], providers: Iterable[str], partitions: Iterable[str]) -> None:
        """The settings' names: their counters begin now, at 0."""
        self._partitions = frozenset(partitions)
        for nodeset in nodesets:
            self.reclaims.labels(nodeset)
            self.set_down.labels(nodeset)
        for provider in providers:
            self.launched.labels(provider)
            for kind in RefusalKind:
                self.refused.labels(provider, kind.value)
        for partition in self._partitions:
            self.requeues.labels(partition)

    _partitions: frozenset[str] = frozenset()

    # --- a pass -------------------------------------------------------------------------------------------------------

    def failed(self) -> None:
        """A pass failed."""
        self.passes.labels("failed").inc()

    def passed(self, view: View, seconds: float, faults: int, ledger_bytes: int) -> None:
        """A pass is done; ``seconds`` is how long it took."""
        self.passes.labels("done").inc()
        self.pass_seconds.observe(seconds)
        self.last_pass.set(view.now)
        self.faults.set(faults)
        self.ledger_bytes.set(ledger_bytes)
        self.slurmctld.set(view.nodes is not None and view.jobs is not None)
        for provider, listing in view.clouds.items():
            if listing is not None:
                self.listing.labels(provider).set(listing.at)
        self._nodes(view)
        self._machines(view)
        self._offerings(view)
        self.notices.set(len(view.notices))
        self.replacements.set(len(view.replacements))
        self.starved.set(sum(kind == WAITING for _, kind in view.counters))
        self._jobs(view)

    def _nodes(self, view: View) -> None:
        self.own_network.set(view.own_network_suspect)
        self.silent.set(len(view.silent_since))
        if view.nodes is None:
            return
        counts: Count[tuple[str, ...]] = Count()
        for name, nodeset in view.policy.nodeset_of.items():
            node = view.nodes.get(name)
            state = state_of(node)
            counts[nodeset, state] += 1
        states = ("down", "drained", *(one.value for one in Phase))
        _set(self.nodes, ((nodeset, state) for nodeset in view.policy.nodesets for state in states), counts)

    def _machines(self, view: View) -> None:
        counts: Count[tuple[str, ...]] = Count()
        for intent in view.intents:
            offering = offering_of(intent.offering_id)
            provider = intent.provider if offering is not None else OTHER
            counts[provider, offering.market.value if offering else OTHER, intent.state.value] += 1
        open_states = (IntentState.ASKED, IntentState.LIVE, IntentState.RETIRED)
        kinds = {(o.provider, o.market.value) for o in view.policy.offerings.values()}
        _set(self.machines, ((p, m, s.value) for p, m in kinds for s in open_states), counts)
        rate, unknown = hourly(view)
        self.cost.set(rate)
        self.unpriced.set(unknown)

    def _offerings(self, view: View) -> None:
        counts: Count[tuple[str, ...]] = Count()
        for offering_id, offering in view.policy.offerings.items():
            counts[offering.provider, standing(view.offerings.get(offering_id), view.now)[0]] += 1
        providers = {offering.provider for offering in view.policy.offerings.values()}
        words = ("ready", "last", "cooling", "stopped", "blocked")
        _set(self.cooling, ((provider, word) for provider in providers for word in words), counts)

    def _jobs(self, view: View) -> None:
        if view.jobs is None:
            return
        counts: Count[tuple[str, ...]] = Count()
        restarts: dict[int, int] = {}
        for job in view.jobs:
            ours = job.partitions & self._partitions
            if not ours:
                continue
            restarts[job.job_id] = job.restart_count
            if self._restarts is not None:
                before = self._restarts.get(job.job_id, 0 if job.restart_count <= 1 else job.restart_count)
                if job.restart_count > before:
                    self.requeues.labels(min(ours)).inc(job.restart_count - before)
            if job.running:
                counts[("running",)] += 1
            elif job.has(*ACTIVE):
                counts[("starting or ending",)] += 1
            elif job.has("PENDING"):
                held = job.priority == 0
                counts[("held" if held else "coming back" if job.restart_count else "waiting",)] += 1
        self._restarts = restarts
        _set(self.jobs, ((s,) for s in ("running", "starting or ending", "held", "coming back", "waiting")), counts)

    # --- events and checkpoints ---------------------------------------------------------------------------------------

    def happened(self, event: Event, nodeset_of: Callable[[str], str | None], offerings: Iterable[str]) -> None:
        """One event of the ledger."""
        nodeset = nodeset_of(event.node) or OTHER
        if event.kind == "notice" and event.text.startswith("reclaim"):
            self.reclaims.labels(nodeset).inc()
        elif event.kind == "down":
            self.set_down.labels(nodeset).inc()
        elif event.kind == "gone" and event.text == LOST:
            self.lost.inc()
        elif event.kind == "launched":
            self.launched.labels(_provider(event.text.rpartition(" of ")[2], offerings)).inc()
        elif event.kind == "refused":
            kind = str(event.detail.get("refusal"))
            reason = kind if kind in [one.value for one in RefusalKind] else OTHER
            self.refused.labels(_provider(event.text.partition(":")[0], offerings), reason).inc()
        elif event.kind in ("cancelled", "requeued and held"):
            self.given_up.inc()

    def saved(self, running: Mapping[str, Saved | None], reachable: bool | None) -> None:
        """Newest checkpoints by job; None: there is none. ``reachable``: the store's last answer, None where it was not asked."""
        if reachable is not None:
            self.store.set(reachable)
        times = {job: one for job, one in running.items() if one is not None}
        self.unsaved.set(len(running) - len(times))
        self.oldest.set(min((one.time for one in times.values()), default=math.nan))
        told = sorted(times.items(), key=lambda item: item[1].time)[:JOBS] if self._tell_jobs else []
        _only(self.checkpoint, {job: one.time for job, one in told})
        _only(self.interval, {job: one.interval for job, one in told if one.interval is not None})


def state_of(node: Node | None) -> str:
    """One word for a node: its power state, or that Slurm does not use it."""
    if node is not None and down(node):
        return "down"
    if node is not None and node.has("DRAIN") and phase(node) is Phase.UP:
        return "drained"
    return phase(node).value


def hourly(view: View) -> tuple[float, int]:
    """What all machines cost an hour, in the currency of the prices, and how many more there are whose price is not known."""
    prices = [view.known.prices.get(i.offering_id) for i in view.intents if i.state is not IntentState.ASKED]
    known = [price for price in prices if price is not None]
    return sum(known), len(prices) - len(known)


def standing(state: OfferingState | None, now: float) -> tuple[str, float]:
    """One word for what stands against an offering at ``now``, and until when (Unix seconds, infinite for good; ``now`` where nothing does):
    ``ready``, ``last`` (its zone was reclaimed), ``cooling``, ``stopped`` or ``blocked``."""
    if state is not None and (found := stands_against(state, now)) is not None:
        return found[0].value, found[1]
    if state is not None and state.reclaimed_until > now:
        return "last", state.reclaimed_until
    return "ready", now


def _provider(offering_id: str, offerings: Iterable[str]) -> str:
    return offering_id.partition("/")[0] if offering_id in offerings else OTHER


def _set(gauge: Gauge, always: Iterable[tuple[str, ...]], counts: Mapping[tuple[str, ...], int]) -> None:
    """All of ``always``, at 0 where there is none; and what has been counted besides. A series that was once told goes to 0, too."""
    for labels in {*_told(gauge), *always, *counts}:
        gauge.labels(*labels).set(counts.get(labels, 0))


def _only(gauge: Gauge, values: Mapping[str, float]) -> None:
    """These and no others. What stays is never away: somebody may read at this very moment."""
    for (label,) in _told(gauge):
        if label not in values:
            gauge.remove(label)
    for label, value in values.items():
        gauge.labels(label).set(value)


def _told(gauge: Gauge) -> set[tuple[str, ...]]:
    return {tuple(sample.labels.values()) for metric in gauge.collect() for sample in metric.samples}
