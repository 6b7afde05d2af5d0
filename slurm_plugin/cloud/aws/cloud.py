"""Amazon EC2 as a provider: CreateFleet for launches, tags for ownership, a journal for what was asked."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from slurm_plugin import render
from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.aws import fleet as fleets
from slurm_plugin.cloud.aws import gangs, images, listing, names, prices, quotas, sizes, template
from slurm_plugin.cloud.aws.client import Ec2
from slurm_plugin.cloud.aws.errors import NO_ANSWER, NO_TEMPLATE, THROTTLES, UNKNOWN_INSTANCE, ApiError, most_telling
from slurm_plugin.cloud.aws.journal import KEEP, Fleet, Journal, Note
from slurm_plugin.cloud.aws.queue import Queue
from slurm_plugin.cloud.images import ImageFacts
from slurm_plugin.cloud.provider import (
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Market,
    Offering,
    RefusalKind,
    Refused,
)
from slurm_plugin.cloud.quotas import Ways
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.config import AwsProvider, Config
from slurm_plugin.errors import CloudUnavailable, ConfigError

AT_ONCE = 8
"""Calls under way at a time."""
TAGS_AT_ONCE = 16
"""The same of CreateTags: nodes that boot wait for their names, and 500 machines take 25 calls."""
UNSEEN = 60.0
"""Seconds for which a machine that was made counts as pending though no listing shows it yet."""
TERMINATE_AT_ONCE = 500
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")
Answers = dict[str, Launched | Refused]
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def from_config(config: Config, name: str) -> AwsCloud:
    """The provider of that name in burst.yaml. Raises ``ModuleNotFoundError`` without boto3."""
    import boto3  # noqa: F401 - said at the start of the manager, not at the first launch

    settings = config.providers[name]
    if not isinstance(settings, AwsProvider):
        raise ConfigError(f"providers.{name}.type: is {settings.type}, not aws")
    programs = replace(render.Programs.beside_python(), spotburst=settings.node_program)
    agent = render.agent_service(programs, slurm_conf=config.slurm.conf)
    return AwsCloud(name, settings, cluster=config.cluster, state_dir=config.state_dir, agent_unit=agent)


class AwsCloud:
    """Implements ``slurm_plugin.cloud.provider.Provider``. Any process with the same state folder may take over."""

    def __init__(
        self,
        name: str,
        config: AwsProvider,
        *,
        cluster: str,
        state_dir: Path,
        agent_unit: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.config, self.cluster, self.agent_unit, self.clock = name, config, cluster, agent_unit, clock
        self.ec2 = Ec2(config)
        self.journal = Journal(state_dir / "launches" / name)
        self.templates = template.Templates(self.ec2, cluster, name)

    # The provider protocol.

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        """See ``Provider.launch``. One CreateFleet a batch; batches at the same time."""
        batches: dict[str, list[LaunchRequest]] = {}
        for request in requests:
            batches.setdefault(launch_ids.base_of(request.launch_id), []).append(request)
        self.journal.forget(self.clock() - KEEP)
        answers: Answers = {}
        for found in self._each(lambda item: self._batch(*item), list(batches.items())):
            answers |= found
        notes = [note for base in batches if (note := self.journal.get(base)) is not None]
        self._name([(note, fleet) for note in notes for fleet in note.fleets])
        unanswered = [a for a in answers.values() if isinstance(a, Refused) and a.code == NO_ANSWER]
        if requests and len(unanswered) == len(answers):
            raise CloudUnavailable(f"{self.name}: {unanswered[0].text}")
        return [answers[request.launch_id] for request in requests]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """See ``Provider.terminate``."""
        known = [i for i in dict.fromkeys(instance_ids) if _INSTANCE_ID.fullmatch(i)]
        faults = [f for piece in launch_ids.chunks(known, TERMINATE_AT_ONCE) for f in self._end(piece)]
        if faults:
            raise CloudUnavailable(f"{self.name}: " + "; ".join(faults))

    def instances(self) -> list[Instance]:
        """See ``Provider.instances``. Also finishes the naming of machines whose launch was broken off."""
        try:
            records = list(self._records({tags.CLUSTER: self.cluster, names.PROVIDER: self.name}))
            found = {f.machine.instance_id: f for f in map(listing.read, records)}
            marked: dict[str, float] = {}
            if any(f.spot and f.machine.state is InstanceState.RUNNING for f in found.values()):
                marks = [{"Name": "status-code", "Values": [listing.MARKED]}]
                marked = listing.marks(
                    self.ec2.pages("describe_spot_instance_requests", "SpotInstanceRequests", Filters=marks)
                )
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error
        self._adopt(found.values())
        known = self.journal.by_instance()
        machines = [self._machine(f, known, marked) for f in found.values()]
        return machines + [m for m in self._unseen() if m.instance_id not in found]

    def mailbox(self) -> Queue | None:
        """See ``SendsMessages``: the queue of EventBridge's events."""
        return Queue(self.config, self.config.events_queue, self.clock) if self.config.events_queue else None

    def prices(self, offerings: Collection[Offering]) -> dict[str, float]:
        """See ``TellsPrices``: of spot machines."""
        spot = [offering for offering in offerings if offering.market is Market.SPOT]
        try:
            return prices.spot_prices(self.ec2, spot, tuple(self.config.subnets))
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error

    def machine_sizes(self, offerings: Collection[Offering]) -> dict[str, MachineSize]:
        """See ``DescribesTypes``."""
        try:
            return sizes.machine_sizes(self.ec2, offerings)
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error

    def image(self) -> ImageFacts:
        """See ``DescribesImages``."""
        return images.image(self.name, self.ec2, self.clock())

    def architectures(self, offerings: Collection[Offering]) -> dict[str, dict[str, frozenset[str]]]:
        """See ``DescribesImages``."""
        return images.architectures(self.name, self.ec2, offerings)

    def quotas(self, offerings: Collection[Offering]) -> dict[str, Ways]:
        """See ``TellsQuotas``."""
        return quotas.quotas(self.name, self.ec2, offerings)

    # Launching.

    def _batch(self, base: str, requests: list[LaunchRequest]) -> Answers:
        """All that is asked of one batch: repeat what is not known to be done, then ask for what was never asked for."""
        note = self.journal.get(base) or Note(base)
        try:
            for fleet in note.fleets:
                if not fleet.done:
                    self._send(note, fleet)
            asked = {m for fleet in note.fleets for m in fleet.members if not fleet.done or m in note.instances}
            new = [r for r in requests if r.launch_id not in asked and r.launch_id not in note.refused]
            for groups in gangs.alike(new):
                self._ask(note, groups)
        except ApiError as error:
            if error.code in NO_TEMPLATE:
                self.templates.forget()
            return self._answers(note, requests, error)
        except CloudUnavailable as error:
            return self._answers(note, requests, ApiError(NO_ANSWER, str(error)))
        return self._answers(note, requests, ApiError(NO_ANSWER, "not asked for yet"))

    def _answers(self, note: Note, requests: Iterable[LaunchRequest], otherwise: ApiError) -> Answers:
        answers: Answers = {}
        for request in requests:
            instance_id = note.instances.get(request.launch_id)
            if instance_id is not None:
                answers[request.launch_id] = Launched(request.launch_id, instance_id)
            else:
                answers[request.launch_id] = note.refusal(request.launch_id) or otherwise.refuse(request.launch_id)
        return answers

    def _ask(self, note: Note, groups: list[gangs.Group]) -> None:
        """Raises ``ApiError``, ``CloudUnavailable``."""
        unasked = gangs.ask(groups, lambda some, trial: self._send(note, self._prepare(note, some, trial)))
        for request, why in unasked:
            note.refuse(why.refuse(request.launch_id))
        if unasked:
            self.journal.save(note)

    def _prepare(self, note: Note, requests: list[LaunchRequest], trial: bool) -> Fleet:
        """Write down the next fleet of a batch. Raises ``ApiError``, ``CloudUnavailable``."""
        members = sorted(requests, key=lambda r: launch_ids.index_of(r.launch_id))
        first = members[0]
        reservation = None
        if first.offering.market is Market.RESERVATION:
            reservation = self.config.reservation(first.offering.instance_type, first.offering.zone)
        data = template.contents(self.config, first.node_config, self.agent_unit, reservation)
        version = self.templates.ensure(first.nodeset, reservation, data)
        common = {
            tags.CLUSTER: self.cluster,
            tags.NODESET: first.nodeset,
            tags.OFFERING: first.offering.id,
            names.PROVIDER: self.name,
            "Name": f"{self.cluster} {first.nodeset}",
        }
        token = note.next_token()
        whole = first.gang is not None and len(members) > 1
        try:
            request = fleets.request(
                self.config,
                replace(first.offering, zone=first.zone) if first.zone else first.offering,
                version,
                names.fleet_tags(common, note.base, token, [(r.launch_id, r.node) for r in members]),
                token=token,
                count=len(members),
                all_or_nothing=whole,
            )
        except ConfigError as error:
            raise ApiError("InvalidOffering", str(error)) from error
        fleet = Fleet(token, [r.launch_id for r in members], request, self.clock(), whole, trial=trial)
        note.nodes |= {r.launch_id: r.node for r in members}
        note.fleets.append(fleet)
        try:
            self.journal.save(note)
        except CloudUnavailable:
            note.fleets.remove(fleet)
            raise
        return fleet

    def _send(self, note: Note, fleet: Fleet) -> ApiError | None:
        """Ask for a fleet, the first time or again, and write the answer down. Returns why it did not come whole.

        Raises ``ApiError`` where there is no answer.
        """
        fleet.asked = self.clock()
        try:
            ids, errors = fleets.read(self.ec2.write("create_fleet", **fleet.request))
        except ApiError as error:
            if error.code in NO_TEMPLATE:
                self.templates.forget()  # the next fleet is asked for with a new one
            elif error.kind is RefusalKind.TRY_LATER:
                raise
            ids, errors = [], [error]
        if fleet.whole and 0 < len(ids) < len(fleet.members):
            self._end(ids)
            ids = []
        note.assign(fleet, ids)
        left = [m for m in fleet.members if m not in note.instances]
        why = most_telling(errors)
        # What was put off is asked for again, by a fleet of its own: this one's answer is the same for ever.
        put_off = why.kind is RefusalKind.TRY_LATER
        if not put_off and not (fleet.trial and why.kind in gangs.TOO_LITTLE):
            for launch_id in left:
                note.refuse(why.refuse(launch_id))
        fleet.done = True
        self.journal.save(note)
        if left and put_off:
            raise why
        return why if left else None

    # Names.

    def _name(self, candidates: Iterable[tuple[Note, Fleet]]) -> None:
        """Tell each instance its place. A fault is no matter: the next listing goes on with it."""
        due = [(n, f) for n, f in candidates if not f.named and any(m in n.instances for m in f.members)]
        one = sum(len(fleet.members) > 1 for _, fleet in due) <= 1
        calls: list[names.Call] = []
        for note, fleet in due:
            calls += names.place_tags([(m, note.nodes[m]) for m in fleet.members], note.instances, readable=one)
        failed = set(chain.from_iterable(self._each(self._tag, names.together(calls), TAGS_AT_ONCE)))
        changed: dict[str, Note] = {}
        for note, fleet in due:
            if fleet.done and failed.isdisjoint(note.instances[m] for m in fleet.members if m in note.instances):
                fleet.named = True
                changed[note.base] = note
        for note in changed.values():
            self.journal.save(note)

    def _tag(self, call: names.Call) -> list[str]:
        """Returns those that did not get their tags."""
        ids, given = call
        labels = [{"Key": k, "Value": v} for k, v in sorted(given.items())]
        try:
            self.ec2.write("create_tags", Resources=ids, Tags=labels)
        except ApiError:
            return ids
        return []

    def _adopt(self, found: Iterable[listing.Found]) -> None:
        """Machines of a fleet that was broken off before they had names: give each a launch of that fleet, and its name."""
        nameless: dict[tuple[str, str], list[str]] = {}
        for one in found:
            if not one.named and one.machine.state is not InstanceState.GONE:
                nameless.setdefault((one.batch, one.fleet), []).append(one.machine.instance_id)
        due: list[tuple[Note, Fleet]] = []
        for (batch, token), ids in nameless.items():
            note = self.journal.get(batch)
            fleet = next((f for f in note.fleets if f.token == token), None) if note else None
            if note is None or fleet is None:
                continue
            if fleet.done or note.assign(fleet, ids):
                fleet.named = False
                self.journal.save(note)
            due.append((note, fleet))
        self._name(due)

    def _each(self, work: Callable[[_Item], _Found], items: Sequence[_Item], at_once: int = AT_ONCE) -> list[_Found]:
        """Calls at the same time; what each returned, in order."""
        if len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(at_once, len(items)), f"{self.name}-calls") as pool:
            return list(pool.map(work, items))

    # Listing.

    def _records(self, wanted: Mapping[str, str]) -> Iterable[dict[str, Any]]:
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()]
        for reservation in self.ec2.pages("describe_instances", "Reservations", Filters=filters, MaxResults=1000):
            yield from reservation.get("Instances") or ()

    def _machine(
        self, found: listing.Found, known: Mapping[str, tuple[Note, str]], marked: Mapping[str, float]
    ) -> Instance:
        machine = found.machine
        if not found.named and machine.instance_id in known:
            note, launch_id = known[machine.instance_id]
            machine = replace(machine, launch_id=launch_id, node=note.nodes[launch_id])
        if machine.instance_id in marked:
            machine = listing.reclaimed(machine, marked[machine.instance_id])
        return machine

    def _unseen(self) -> list[Instance]:
        """Machines that were made a moment ago: EC2 may not list them yet."""
        young = self.clock() - UNSEEN
        found = []
        for note in self.journal.notes():
            for fleet in note.fleets:
                if fleet.asked < young:
                    continue
                told = {t["Key"]: t["Value"] for t in fleet.request["TagSpecifications"][0]["Tags"]}
                found += [
                    Instance(
                        instance_id=note.instances[m],
                        launch_id=m,
                        node=note.nodes[m],
                        nodeset=told[tags.NODESET],
                        state=InstanceState.PENDING,
                        launched=fleet.asked,
                        offering_id=told[tags.OFFERING],
                    )
                    for m in fleet.members
                    if m in note.instances
                ]
        return found

    # Ending.

    def _end(self, ids: list[str]) -> list[str]:
        """Terminate; what could not be ended, in words. One that EC2 does not know fails the whole call: then without it."""
        if not ids:
            return []
        try:
            self.ec2.write("terminate_instances", InstanceIds=ids)
            return []
        except ApiError as error:
            if error.code in UNKNOWN_INSTANCE:
                unknown = set(_INSTANCE_ID.findall(error.text)) & set(ids)
                if unknown or len(ids) == 1:
                    return self._end([i for i in ids if i not in unknown]) if unknown else []
            if len(ids) == 1 or error.code in (*THROTTLES, NO_ANSWER):
                return [f"{', '.join(ids)}: {error}"]
            half = len(ids) // 2
            return self._end(ids[:half]) + self._end(ids[half:])
