"""One look at everything: Slurm, the clouds, slurmctld's requests, the ledger. What can't be had is None in the view."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from slurm_plugin import requeue
from slurm_plugin.cloud.provider import Instance
from slurm_plugin.errors import CloudUnavailable, ConfigError, SlurmUnavailable
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import Intent, IntentState
from slurm_plugin.manager.booting import Booting
from slurm_plugin.manager.hearing import Hearing, with_notices
from slurm_plugin.manager.lane import LIST_TIMEOUT, Lane
from slurm_plugin.manager.reach import Reach
from slurm_plugin.manager.runs import RunReader
from slurm_plugin.manager.say import Once, log
from slurm_plugin.placement import Knowledge, Order
from slurm_plugin.prices import PriceTable, price_list
from slurm_plugin.reconcile.flags import Phase, down, phase, to_be_recovered
from slurm_plugin.reconcile.view import BootFacts, Listing, Policy, View
from slurm_plugin.requests import Request, read_requests
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.records import Job, Node, Partition

Answer = TypeVar("Answer")
PARTITIONS_EVERY = 30.0
"""Seconds between two looks at the partitions; they change only with the configuration."""

KNOWN_EVERY = 60.0
"""Seconds between two looks at prices and experience."""


@dataclass(slots=True)
class Memory:
    """What only a look after a look can tell. Begun anew by a restart, which makes everything count later, never sooner."""

    missing_since: dict[str, float] = field(default_factory=dict)
    absent_since: dict[str, float] = field(default_factory=dict)
    stranded_since: dict[str, float] = field(default_factory=dict)
    listings: dict[str, Listing] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)
    partitions_at: float = float("-inf")
    known: Knowledge = field(default_factory=Knowledge)
    known_at: float = float("-inf")


class Observer:
    """Looks. ``look`` never raises for what the outside does."""

    def __init__(
        self,
        policy: Policy,
        client: SlurmClient,
        lanes: Mapping[str, Lane],
        ledger: Ledger,
        state_dir: Path,
        *,
        once: Once,
        reach: Reach | None = None,
        booting: Booting | None = None,
        hearing: Hearing | None = None,
        runs: RunReader | None = None,
        prices: PriceTable | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy, self.client, self.lanes, self.ledger, self.state_dir = policy, client, lanes, ledger, state_dir
        self.once, self.reach, self.runs, self.clock = once, reach, runs, clock
        self.hearing, self.booting = hearing, booting
        self.memory = Memory()
        self.prices = prices
        self._pool = ThreadPoolExecutor(3, "slurm")

    def look(self) -> View:
        """Everything, Slurm and the clouds at the same time."""
        began = self.clock()
        # Requests first: Slurm changes a node's state before it calls a program, so the state read after them is newer.
        requests = self._requests()
        nodes_call = self._pool.submit(self.client.nodes)
        jobs_call = self._pool.submit(self.client.jobs)
        if self.clock() - self.memory.partitions_at >= PARTITIONS_EVERY:
            self._partitions()
        clouds = self._clouds()
        nodes = self._slurm(nodes_call)
        jobs = self._slurm(jobs_call)
        if nodes is not None and jobs is not None:
            self.once.well("Slurm")
        by_name = {node.name: node for node in nodes} if nodes is not None else None
        now = self.clock()
        intents = self.ledger.intents()
        self._note_missing(now, intents_by_provider(intents), clouds)
        self._note_absent(now, by_name, {i.node for i in intents} | _machine_nodes(clouds))
        self._note_stranded(now, by_name, jobs, intents)
        silent, suspect = self._contact(by_name, clouds)
        answered = by_name if jobs is not None else None
        boots = BootFacts() if self.booting is None else self.booting.look(now, answered, intents, clouds)
        return View(
            now=now,
            policy=self.policy,
            nodes=by_name,
            jobs=jobs,
            partitions=dict(self.memory.partitions),
            clouds=clouds,
            intents=intents,
            notices=self.ledger.notices(),
            replacements=self.ledger.replacements(),
            offerings=self.ledger.offerings(),
            known=self._known(now),
            requests=requests,
            seen=self.ledger.seen_jobs(),
            counters=self.ledger.counters(),
            charges=self.ledger.charges(),
            spent=self.ledger.spent(),
            silent_since=silent,
            own_network_suspect=suspect,
            missing_since=dict(self.memory.missing_since),
            absent_since=dict(self.memory.absent_since),
            stranded_since=dict(self.memory.stranded_since),
            boots=boots,
            began=began,
            runs=self._runs(now, jobs, boots.slurmctld_began),
        )

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- Slurm --------------------------------------------------------------------------------------------------------

    def _slurm(self, call: Future[Answer]) -> Answer | None:
        try:
            return call.result()
        except Exception as error:
            self._slurm_fault(error)
            return None

    def _slurm_fault(self, error: Exception) -> None:
        if not isinstance(error, SlurmUnavailable):
            log.error("asking Slurm failed", error=repr(error))
        self.once.fault("Slurm", f"does not answer, so nothing is concluded about nodes and jobs: {_first_line(error)}")

    def _partitions(self) -> None:
        try:
            self.memory.partitions = {p.name: p for p in self.client.partitions()}
            self.memory.partitions_at = self.clock()
        except Exception as error:
            self._slurm_fault(error)

    def _requests(self) -> tuple[Request, ...]:
        try:
            requests = tuple(read_requests(self.state_dir))
        except ConfigError as error:
            self.once.fault("requests", str(error))
            return ()
        self.once.well("requests")
        return requests

    # --- prices and experience ----------------------------------------------------------------------------------------

    def _known(self, now: float) -> Knowledge:
        """Read anew once a minute: it takes long, and changes little."""
        if now - self.memory.known_at >= KNOWN_EVERY:
            prices = price_list(self.policy.offerings.values(), self.prices, self.ledger.live_prices())
            rated = any(facts.rules.policy is Order.MOST_AVAILABLE for facts in self.policy.nodesets.values())
            seen = self.ledger.experience() if rated else {}
            self.memory.known, self.memory.known_at = (
                Knowledge(prices, seen, self.policy.gpus, self.ledger.sizes(), self.policy.scattered),
                now,
            )
        return self.memory.known

    # --- clouds -------------------------------------------------------------------------------------------------------

    def _clouds(self) -> dict[str, Listing | None]:
        clouds: dict[str, Listing | None] = {}
        calls: dict[str, tuple[float, Future[list[Instance]]]] = {}
        now = self.clock()
        for name, lane in self.lanes.items():
            last = self.memory.listings.get(name)
            changed = self.hearing is not None and self.hearing.changed(name)
            if last is not None and not changed and 0 <= now - last.at < lane.list_every:
                clouds[name] = last
                continue
            clouds[name] = None
            try:
                calls[name] = now, lane.start(lane.provider.instances)
            except CloudUnavailable as error:
                self._cloud_fault(name, error)
        until = time.monotonic() + LIST_TIMEOUT
        for name, (at, call) in calls.items():
            try:
                machines = self.lanes[name].wait(call, max(0.0, until - time.monotonic()))
            except Exception as error:
                self._cloud_fault(name, error)
                continue
            self.once.well(f"cloud {name}")
            self.memory.listings[name] = Listing(at, tuple(machines))
            clouds[name] = self.memory.listings[name]
        return {name: self._heard(name, listing) for name, listing in clouds.items()}

    def _heard(self, name: str, listing: Listing | None) -> Listing | None:
        if listing is None or self.hearing is None:
            return listing
        return Listing(listing.at, with_notices(listing.instances, self.hearing.taken_away(name)))

    def _cloud_fault(self, name: str, error: Exception) -> None:
        self.memory.listings.pop(name, None)
        text = str(error) if isinstance(error, CloudUnavailable) else repr(error)
        self.once.fault(f"cloud {name}", f"its machines are unknown, so nothing is concluded about them: {text}")

    def _note_missing(self, now: float, intents: Mapping[str, set[str]], clouds: Mapping[str, Listing | None]) -> None:
        still: dict[str, float] = {}
        for provider, launch_ids in intents.items():
            listing = clouds.get(provider)
            if listing is None:
                continue  # unknown: the count begins anew
            present = {machine.launch_id for machine in listing.instances}
            for launch_id in launch_ids - present:
                still[launch_id] = self.memory.missing_since.get(launch_id, now)
        self.memory.missing_since = still

    def _note_absent(self, now: float, nodes: Mapping[str, Node] | None, names: set[str]) -> None:
        if nodes is None:
            self.memory.absent_since = {}
            return
        self.memory.absent_since = {n: self.memory.absent_since.get(n, now) for n in names if n not in nodes}

    def _note_stranded(
        self, now: float, nodes: Mapping[str, Node] | None, jobs: tuple[Job, ...] | None, intents: Collection[Intent]
    ) -> None:
        if nodes is None or jobs is None:
            self.memory.stranded_since = {}
            return
        held = {name for job in jobs if job.running for name in job.nodes}
        known = {i.node for i in intents if i.registered and i.state is IntentState.LIVE}
        at = {name: phase(nodes[name]) for name in held | known if name in self.policy.nodeset_of and name in nodes}
        stranded = {
            name
            for name, where in at.items()
            if (where is Phase.OFF and name in held) or (where is Phase.COMING_UP and name in known)
        }
        self.memory.stranded_since = {n: self.memory.stranded_since.get(n, now) for n in stranded}

    # --- contact and ended jobs ---------------------------------------------------------------------------------------

    def _contact(
        self, nodes: Mapping[str, Node] | None, clouds: Mapping[str, Listing | None]
    ) -> tuple[dict[str, float], bool]:
        if self.reach is None:
            return {}, False
        if nodes is not None:
            addresses = {m.node: m.address for c in clouds.values() if c for m in c.instances if m.address and m.billed}
            self.reach.watch(
                {
                    name: (addresses.get(name) or nodes[name].address or name, nodes[name].port)
                    for name in self.policy.nodeset_of
                    if name in nodes
                    and phase(nodes[name]) is Phase.UP
                    and (not down(nodes[name]) or to_be_recovered(nodes[name]))
                },
                doubted={
                    name for name in self.policy.nodeset_of if name in nodes and nodes[name].has("NOT_RESPONDING")
                },
            )
        suspect = self.reach.own_network_suspect()
        if suspect:
            self.once.fault(
                "contact", "no node can be reached: rather this machine's own network, so none is set down for silence"
            )
        else:
            self.once.well("contact")
        return self.reach.silent_since(), suspect

    def _runs(
        self, now: float, jobs: tuple[Job, ...] | None, began: float | None
    ) -> dict[int, tuple[requeue.RunTail, ...]]:
        """``began``: slurmctld did then."""
        if self.runs is None:
            return {}
        asks = any(
            facts.rules.final_on_demand or facts.rules.policy is Order.DEADLINE
            for facts in self.policy.nodesets.values()
        )
        if jobs is not None:
            self.runs.look_up(
                job
                for job in jobs
                if (requeue.may_need_help(job) and now - job.end_time <= self.policy.requeue_window)
                or (asks and _progress_counts(job))
                or (requeue.may_be_forgotten(job, began, now) and any(n in self.policy.nodeset_of for n in job.nodes))
            )
        return self.runs.found()


def _progress_counts(job: Job) -> bool:
    """A job that has run before and for which a machine may be bought now: how much of it is left is in its log."""
    return job.restart_count > 0 and job.has("PENDING", "CONFIGURING") and not job.has("COMPLETING")


def intents_by_provider(intents: tuple[Intent, ...]) -> dict[str, set[str]]:
    """Launch ids of open intents, by provider."""
    found: dict[str, set[str]] = {}
    for intent in intents:
        found.setdefault(intent.provider, set()).add(intent.launch_id)
    return found


def _machine_nodes(clouds: Mapping[str, Listing | None]) -> set[str]:
    return {m.node for listing in clouds.values() if listing for m in listing.instances}


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]
