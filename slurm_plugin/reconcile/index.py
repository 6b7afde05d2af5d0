"""The view by node, by job and by launch: everything that deciding looks up, made once a pass in linear time."""

from __future__ import annotations

import math
from collections import defaultdict

from slurm_plugin.cloud.provider import Instance, InstanceState
from slurm_plugin.ledger_records import Intent, IntentState, OpenNotice
from slurm_plugin.reconcile.flags import Phase, phase
from slurm_plugin.reconcile.offers import Offers
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Job, Node

CONFIRMED = 5.0
"""Seconds that a machine must be missing from successful listings before it counts as gone (listings flicker)."""
ACTIVE = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")


class Index:
    """Lookups over one view. Nothing here decides."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.offers = Offers(view)
        timeouts = [facts.rules.queue_timeout for facts in view.policy.nodesets.values()]
        self.shortest_queue_timeout = min(timeouts, default=math.inf)
        self.instance: dict[str, tuple[str, Instance]] = {}
        """By launch id."""
        self.machines: dict[str, list[tuple[str, Instance]]] = defaultdict(list)
        """By node: machines that exist or still have to be deleted."""
        for provider, listing in view.clouds.items():
            for machine in listing.instances if listing else ():
                self.instance[machine.launch_id] = (provider, machine)
                if machine.state is not InstanceState.GONE or machine.billed:
                    self.machines[machine.node].append((provider, machine))
        self.intents: dict[str, list[Intent]] = defaultdict(list)
        """Open ones by node, oldest first."""
        self.intent: dict[str, Intent] = {}
        for intent in sorted(view.intents, key=lambda i: (i.created, i.launch_id)):
            self.intents[intent.node].append(intent)
            self.intent[intent.launch_id] = intent
        self._current = {
            intent.node: intent
            for found in self.intents.values()
            for intent in found
            if intent.state is not IntentState.RETIRED
        }
        self.jobs_on: dict[str, list[Job]] = defaultdict(list)
        self.job: dict[int, Job] = {}
        for job in view.jobs or ():
            self.job[job.job_id] = job
            if job.has(*ACTIVE):
                for node in job.nodes:
                    self.jobs_on[node].append(job)
        self.notices: dict[str, list[OpenNotice]] = defaultdict(list)
        for notice in view.notices:
            self.notices[notice.node].append(notice)
        self.limited = any(facts.rules.cost_limit is not None for facts in view.policy.nodesets.values())
        """Whether a nodeset limits what a run may cost."""
        self._nodesets: dict[str, frozenset[str]] = {}
        self.cut: dict[str, float] = {}
        """By node: when Slurm last asked to end its machine. Whatever was launched before has been replaced or is not wanted."""
        for request in view.requests:
            if request.kind in ("suspend", "resume_fail"):
                for node in request.nodes:
                    self.cut[node] = max(request.time, self.cut.get(node, 0.0))

    def nodesets_of(self, partitions: str) -> frozenset[str]:
        """Nodesets with nodes in one of these partitions (a list with commas), as Slurm shows them."""
        found = self._nodesets.get(partitions)
        if found is None:
            named = [p for name in partitions.split(",") if (p := self.view.partitions.get(name)) is not None]
            of = self.view.policy.nodeset_of
            found = self._nodesets[partitions] = frozenset(of[n] for p in named for n in p.nodes if n in of)
        return found

    def node(self, name: str) -> Node | None:
        """Slurm's record; None where Slurm does not know the node. Only to be asked while ``view.nodes`` is known."""
        return self.view.nodes.get(name) if self.view.nodes is not None else None

    def phase(self, name: str) -> Phase:
        """The node's phase; UNCLEAR while Slurm does not answer."""
        if self.view.nodes is None:
            return Phase.UNCLEAR
        return phase(self.view.nodes.get(name))

    def current(self, node: str) -> Intent | None:
        """The intent whose machine is this node now: the newest that is not retired."""
        return self._current.get(node)

    def machine(self, intent: Intent) -> Instance | None:
        """The intent's machine as the cloud shows it."""
        found = self.instance.get(intent.launch_id)
        return found[1] if found else None

    def known(self, provider: str) -> bool:
        """Whether the provider's machines are known now."""
        return self.view.clouds.get(provider) is not None

    def gone(self, intent: Intent) -> bool:
        """The cloud says that the machine does not run any more, or has lacked it for long enough."""
        listing = self.view.clouds.get(intent.provider)
        if listing is None:
            return False
        machine = self.machine(intent)
        if machine is not None:
            return machine.state is InstanceState.GONE
        if intent.created >= listing.at or intent.tried >= listing.at:
            return False
        missing = self.view.missing_since.get(intent.launch_id)
        if missing is None or self.view.now - missing < CONFIRMED:
            return False
        # A young machine may be missing from a listing though it exists; one that we ended ourselves may vanish at any age.
        young = self.view.now - max(intent.created, intent.tried) < self.view.policy.orphan_grace
        return not young or (intent.state is IntentState.RETIRED and bool(intent.instance_id))

    def finished(self, intent: Intent) -> bool:
        """Gone, and nothing of it is left to delete."""
        machine = self.machine(intent)
        return self.gone(intent) and (machine is None or not machine.billed)

    def going(self, intent: Intent) -> bool:
        """Gone, or on its way: nothing runs there any more that could be waited for."""
        machine = self.machine(intent)
        return self.gone(intent) or (machine is not None and machine.state is InstanceState.STOPPING)

    def reclaiming(self, intent: Intent | None) -> Instance | None:
        """The machine, if the cloud's listing says that it is being taken back."""
        machine = self.machine(intent) if intent else None
        return machine if machine is not None and machine.state is InstanceState.RECLAIMING else None

    def name_is_free(self, node: str) -> bool:
        """Whether no machine of this name exists, as far as anyone can know: all open intents done, nothing listed."""
        if self.machines.get(node):
            return False
        nodeset = self.view.policy.nodesets.get(self.view.policy.nodeset_of.get(node, ""))
        if nodeset is not None and not any(self.known(p) for p in nodeset.providers):
            return False
        return all(self.finished(intent) for intent in self.intents.get(node, ()))

    def silent_for(self, node: str) -> float:
        """Seconds for which the node's slurmd has not been reached; 0 if it was, or was not tried."""
        since = self.view.silent_since.get(node)
        return 0.0 if since is None else max(0.0, self.view.now - since)
