"""Compute Engine as a provider. A machine is called as its node; bulk inserts make many in one call.

A call is noted on disk before it is sent, under a request id that follows from its launches, and is repeated under it until its operation's
end is known. So a crash between any two steps, and an answer that never came, make no second machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.asking import asking
from slurm_plugin.cloud.gcp import images, quotas, shape
from slurm_plugin.cloud.gcp.catalog import Catalog
from slurm_plugin.cloud.gcp.client import Gce, has_notice
from slurm_plugin.cloud.gcp.ended import KEEP as KEEP_ENDED
from slurm_plugin.cloud.gcp.ended import Ended
from slurm_plugin.cloud.gcp.errors import NAME_IN_USE, NO_ANSWER, RUNNING, ApiError, most_telling
from slurm_plugin.cloud.gcp.journal import KEEP, Call, Journal, request_id
from slurm_plugin.cloud.gcp.shape import Machine
from slurm_plugin.cloud.images import ImageFacts
from slurm_plugin.cloud.named import LAG, NamedCloud, settings_of
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
from slurm_plugin.config import Config, GcpProvider
from slurm_plugin.config_providers import ANY_ZONE
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.render import gcp_startup

BATCH = 100
"""Machines of one call where they need not come together: each machine bears the list of its call's members."""
ASK_AGAIN = 60.0
"""Seconds after which a machine that should be ending is ended again."""


def from_config(config: Config, name: str) -> GcpCloud:
    """The provider of that name in burst.yaml. Raises ``ConfigError``. Nothing is sent."""
    settings = settings_of(config, name, GcpProvider, "gcp")
    return GcpCloud(name, settings, cluster=config.cluster, state_dir=config.state_dir, slurm_conf=config.slurm.conf)


class GcpCloud(NamedCloud[GcpProvider]):
    """Implements ``slurm_plugin.cloud.provider.Provider``."""

    at_once = 8

    def _open(self, journal: Path) -> None:
        self.api = Gce(self.config)
        self.journal = Journal(journal)
        self._catalog = Catalog(self.api)
        self._notice = has_notice()
        self._ended = Ended(journal.with_name(f"{journal.name}.ended.json"), self._clock)
        self._ending: dict[int, float] = {}
        """When this process last asked for it, by the monotonic clock."""

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        """See ``Provider.launch``."""
        with self._lock:
            self.journal.forget(self._clock() - KEEP)
            answers: dict[str, Launched | Refused] = {}
            fresh = [r for r in requests if self._call_of(r.launch_id) is None]
            if fresh:
                try:
                    seen = self._machines()
                except ApiError as error:
                    refused = ApiError(error.code if error.kind is RefusalKind.TRY_LATER else NO_ANSWER, error.text)
                    answers |= {r.launch_id: refused.refuse(r.launch_id, r.offering.instance_type) for r in fresh}
                else:
                    for call in self._plan(fresh, seen, answers):
                        self.journal.save(call)
            wanted = [
                c for r in requests if r.launch_id not in answers and (c := self._call_of(r.launch_id)) is not None
            ]
            failed = self._drive(
                list({c.request_id: c for c in wanted if not c.done}.values()), {r.launch_id: r for r in requests}
            )
            for request in requests:
                if request.launch_id not in answers:
                    answers[request.launch_id] = self._answer(request, failed)
            return [answers[r.launch_id] for r in requests]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """See ``Provider.terminate``."""
        wanted = {i for i in instance_ids if "/" in i}
        if not wanted:
            return
        try:
            listed = {m.instance_id: m for m in self._machines()}
            missing = [i for i in wanted if i not in listed]
            found = [listed[i] for i in wanted if i in listed] + self._by_name(i.rsplit("/", 1)[-1] for i in missing)
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error
        self._ending = {n: since for n, since in self._ending.items() if since > time.monotonic() - KEEP_ENDED}
        self._end([m for m in found if self._ending.get(m.number, float("-inf")) < time.monotonic() - ASK_AGAIN])

    def instances(self) -> list[Instance]:
        """See ``Provider.instances``."""
        try:
            machines = self._machines()
            listed = {m.owner.launch_id for m in machines}
            recent = [c for c in self.journal.calls() if c.asked > self._clock() - LAG]
            made = [i for c in recent for i in c.made if i not in listed and i not in self._over]
            unlisted = self._by_name(made)
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error
        starting = (InstanceState.PENDING, InstanceState.RUNNING)
        return [m.instance(self._told(m)) for m in machines] + [
            m.instance(InstanceState.PENDING if m.state in starting else None) for m in unlisted
        ]

    def machine_sizes(self, offerings: Collection[Offering]) -> dict[str, MachineSize]:
        """See ``DescribesTypes``."""
        try:
            return self._catalog.sizes(offerings)
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error

    def image(self) -> ImageFacts:
        """See ``DescribesImages``."""
        with asking(self.name, images.permission(self.config.image)):
            return images.image(self.api)

    def architectures(self, offerings: Collection[Offering]) -> dict[str, dict[str, frozenset[str]]]:
        """See ``DescribesImages``."""
        with asking(self.name, "compute.machineTypes.get"):
            return images.architectures(self._catalog.parts(offerings), offerings)

    def quotas(self, offerings: Collection[Offering]) -> dict[str, Ways]:
        """See ``TellsQuotas``."""
        with asking(self.name, "compute.machineTypes.get"):
            parts = self._catalog.parts(offerings)
        with asking(self.name, "compute.regions.get"):
            return quotas.ways(self.api.quotas(), self.config.region, parts, offerings)

    def prices(self, offerings: Collection[Offering]) -> dict[str, float]:
        """See ``TellsPrices``."""
        try:
            return self._catalog.prices(offerings)
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error

    def _told(self, machine: Machine) -> InstanceState | None:
        """A spot machine that stops, and that nobody here has ended, is being preempted; Compute Engine has no other word for it."""
        if machine.status == "STOPPING" and machine.spot and machine.number not in self._ended:
            return InstanceState.RECLAIMING
        return None

    # Launching.

    def _call_of(self, launch_id: str) -> Call | None:
        """The call that decides about the launch; None where it is to be asked for (again)."""
        calls = self.journal.of(launch_id)
        if calls and (not calls[-1].done or launch_id in calls[-1].made or launch_id in calls[-1].refused):
            return calls[-1]
        return None

    def _plan(
        self, fresh: Sequence[LaunchRequest], seen: Sequence[Machine], answers: dict[str, Launched | Refused]
    ) -> list[Call]:
        """The calls to make for what was never asked, and ``answers`` to what needs no call. Ends machines that only keep a name."""
        by_launch = {m.owner.launch_id: m for m in seen}
        groups: dict[tuple[str, str, str | None, str], list[LaunchRequest]] = {}
        for request in fresh:
            machine = by_launch.get(request.launch_id)
            if machine is not None:
                answers[request.launch_id] = Launched(request.launch_id, machine.instance_id)
                continue
            key = (request.offering.id, request.zone, request.gang, launch_ids.base_of(request.launch_id))
            groups.setdefault(key, []).append(request)
        calls = []
        for (_, _, gang, _), group in groups.items():
            fits = []
            for request in group:
                refused = self._unfit(request, seen)
                if refused is not None:
                    answers[request.launch_id] = refused.refuse(request.launch_id, request.offering.instance_type)
                else:
                    fits.append(request)
            if gang and len(fits) < len(group):
                told = [a for r in group if isinstance(a := answers.get(r.launch_id), Refused)]
                for request in fits:
                    answers[request.launch_id] = replace(told[0], launch_id=request.launch_id)
                continue
            calls += [self._call(piece) for piece in ([fits] if gang else launch_ids.chunks(fits, BATCH)) if piece]
        return calls

    def _unfit(self, request: LaunchRequest, seen: Sequence[Machine]) -> ApiError | None:
        """Why the node can't be made now."""
        if not shape.NAME.fullmatch(request.node):
            return ApiError(
                "invalid",
                f"{request.node!r} can't be a machine's name: lower case, digits and -, beginning with a letter",
            )
        for machine in seen:
            if machine.name == request.node and self._zone(request) in ("", machine.zone):
                if machine.state is InstanceState.GONE:
                    with contextlib.suppress(CloudUnavailable):  # tried again when the node is asked for again
                        self._end([machine])
                return ApiError(
                    NAME_IN_USE,
                    f"{machine.zone}: an earlier machine called {machine.name} is {machine.status} and not yet deleted",
                )
        return None

    def _zone(self, request: LaunchRequest) -> str:
        """ "" for the whole region."""
        return request.zone if request.offering.zone in ANY_ZONE else request.offering.zone

    def _call(self, group: Sequence[LaunchRequest]) -> Call:
        first = group[0]
        members = {r.launch_id: r.node for r in group}
        spot = first.offering.market is Market.SPOT
        return Call(
            request_id=request_id(members, len(self.journal.of(min(members)))),
            members=members,
            nodeset=first.nodeset,
            offering_id=first.offering.id,
            zone=self._zone(first),
            instance_type=first.offering.instance_type,
            market=first.offering.market.value,
            whole=first.gang is not None,
            notice=spot and self._notice,
            asked=self._clock(),
        )

    def _drive(self, calls: Sequence[Call], requests: dict[str, LaunchRequest]) -> dict[str, ApiError]:
        """Send what was not sent, wait a while, settle what has ended. Returns, by request id, why a call is still open."""
        failed: dict[str, ApiError] = {}
        ended: list[tuple[Call, list[ApiError]]] = []
        running: list[Call] = []
        for call, error in zip(calls, self._each(calls, lambda c: self._begin(c, requests)), strict=True):
            if error is None:
                running.append(call)
            elif error.kind is RefusalKind.TRY_LATER:
                failed[call.request_id] = error
            else:
                ended.append((call, [error]))
        looked: Iterator[tuple[Call, list[ApiError] | ApiError | None]] = self._watch(running, self._look)
        for call, found in looked:
            if found is None:
                failed[call.request_id] = ApiError(RUNNING, f"operation {call.operation} is under way")
            elif isinstance(found, ApiError):
                failed[call.request_id] = found
            else:
                ended.append((call, found))
        return failed | self._settle_all(ended)

    def _begin(self, call: Call, requests: dict[str, LaunchRequest]) -> ApiError | None:
        """Send the call unless its operation is known."""
        try:
            if not call.operation:
                call.operation = self._send(call, requests)
                self.journal.save(call)
        except ApiError as error:
            return error
        return None

    def _look(self, call: Call) -> list[ApiError] | ApiError | None:
        """What went wrong in its operation; None while it runs, an error where that can't be had."""
        try:
            return self.api.operation(call.zone, call.operation)
        except ApiError as error:
            # Operations are forgotten in the end; then the machines themselves tell.
            return [] if error.status == 404 else error

    def _settle_all(self, ended: Sequence[tuple[Call, list[ApiError]]]) -> dict[str, ApiError]:
        """Returns, by request id, why a call could not be settled."""
        failed: dict[str, ApiError] = {}
        try:
            seen = {m.owner.launch_id: m for m in self._machines()} if ended else {}
        except ApiError as error:
            return {call.request_id: error for call, _ in ended}
        for call, errors in ended:
            try:
                self._settle(call, errors, seen)
            except (ApiError, CloudUnavailable) as error:
                failed[call.request_id] = error if isinstance(error, ApiError) else ApiError(NO_ANSWER, str(error))
        return failed

    def _send(self, call: Call, requests: dict[str, LaunchRequest]) -> str:
        known = next((r for i in call.members if (r := requests.get(i)) is not None), None)
        settings = {**(known.node_config if known else {}), "provider": "gcp"}
        if call.notice:
            settings["notice_seconds"] = float(shape.NOTICE)
        resource = shape.resource(self.config, self.cluster, call, gcp_startup(settings, self._unit))
        return self.api.insert(call.zone, resource, call.request_id)

    def _settle(self, call: Call, errors: list[ApiError], seen: Mapping[str, Machine]) -> None:
        """The call's operation has ended: which of its machines are there, and why not the others. ``seen``: a listing from after it."""
        if call.notice and any("preemptionnotice" in e.text.replace("_", "").lower() for e in errors):
            self._notice = False  # this project's API does not take it; the same machines are asked for without
            call.done = True
            self.journal.save(call)
            return
        there = {launch_id: seen[launch_id] for launch_id in call.members if launch_id in seen}
        there |= {m.owner.launch_id: m for m in self._by_name((i for i in call.members if i not in there), call)}
        missing = [i for i in call.members if i not in there]
        if missing and call.whole and there:
            self._end(list(there.values()))
            missing, there = list(call.members), {}
        call.made = {launch_id: machine.zone for launch_id, machine in there.items()}
        if missing and (worst := most_telling(errors)).kind is not RefusalKind.TRY_LATER:
            call.refused = dict.fromkeys(missing, (worst.code, worst.text, worst.status, worst.limit))
        call.done = True
        self.journal.save(call)

    def _answer(self, request: LaunchRequest, failed: dict[str, ApiError]) -> Launched | Refused:
        launch_id, instance_type = request.launch_id, request.offering.instance_type
        call = self._call_of(launch_id)
        if call is None:
            return ApiError(NO_ANSWER, "the last try came to nothing; asked again").refuse(launch_id, instance_type)
        if launch_id in call.made:
            return Launched(launch_id, shape.instance_id(call.members[launch_id], launch_id))
        if launch_id in call.refused:
            return ApiError(*call.refused[launch_id]).refuse(launch_id, instance_type)
        error = failed.get(call.request_id) or ApiError(RUNNING, "under way")
        later = error if error.kind is RefusalKind.TRY_LATER else ApiError(NO_ANSWER, str(error))
        return later.refuse(launch_id, instance_type)

    # Machines.

    def _machines(self) -> list[Machine]:
        """All of this cluster that the listing shows. Raises ``ApiError``."""
        found = self.api.instances(tags.CLUSTER, shape.label(self.cluster))
        machines = [machine for instance in found if (machine := shape.read(instance, self.cluster)) is not None]
        # Another provider of burst.yaml may have the same project and region.
        return [m for m in machines if m.owner.offering_id.partition("/")[0] in ("", self.name)]

    def _by_name(self, wanted: Iterable[str], call: Call | None = None) -> list[Machine]:
        """The machines of these launches, each asked for by its name: listings may lag behind. Raises ``ApiError``."""
        found = []
        for launch_id in wanted:
            of = call or next((c for c in reversed(self.journal.of(launch_id)) if launch_id in c.made), None)
            if of is None:
                continue
            zone = of.made.get(launch_id) or of.zone
            zones = [zone] if zone else list(self.config.zones) or self.api.zones()
            for place in zones:
                instance = self.api.instance(place, of.members[launch_id])
                machine = shape.read(instance, self.cluster) if instance is not None else None
                if machine is not None and machine.owner.launch_id == launch_id:
                    found.append(machine)
                    break
            else:
                if call is None:
                    self._over.add(launch_id)
        return found

    def _end(self, machines: Sequence[Machine]) -> None:
        """Delete them, each whatever becomes of the others. Raises ``CloudUnavailable`` that names those that could not be."""

        self._ended.note([machine.number for machine in machines])

        def end(machine: Machine) -> str:
            try:
                self.api.delete(machine.zone, machine.number)
            except ApiError as error:
                return f"{machine.name}: {error}"
            self._ending[machine.number] = time.monotonic()
            return ""

        self._delete(machines, end)
