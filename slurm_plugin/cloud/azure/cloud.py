"""Azure as a provider. A machine is called as its node, and bears its launch id as a tag; each is a call of its own.

A machine is only ever made where there is none of its name, so an answer that was lost, and a crash between any two steps, make no
second one. Whether capacity is there shows some seconds later in the machine itself: one that failed is deleted again and refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from job_wrapper.node_config import NodeConfig
from slurm_plugin.cloud.asking import asking
from slurm_plugin.cloud.azure import images, quotas, shape
from slurm_plugin.cloud.azure.catalog import Catalog
from slurm_plugin.cloud.azure.client import Arm
from slurm_plugin.cloud.azure.errors import CREATING, NAME_IN_USE, NO_ANSWER, ApiError, most_telling
from slurm_plugin.cloud.azure.journal import KEEP, Journal, Note
from slurm_plugin.cloud.azure.shape import Machine
from slurm_plugin.cloud.images import ImageFacts
from slurm_plugin.cloud.named import LAG, NamedCloud, settings_of
from slurm_plugin.cloud.provider import (
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Offering,
    RefusalKind,
    Refused,
)
from slurm_plugin.cloud.quotas import Ways
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.config import AzureProvider, Config
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.render import cloud_init


def from_config(config: Config, name: str) -> AzureCloud:
    """The provider of that name in burst.yaml. Raises ``ConfigError``. Nothing is sent."""
    settings = settings_of(config, name, AzureProvider, "azure")
    return AzureCloud(name, settings, cluster=config.cluster, state_dir=config.state_dir, slurm_conf=config.slurm.conf)


class AzureCloud(NamedCloud[AzureProvider]):
    """Implements ``slurm_plugin.cloud.provider.Provider``."""

    at_once = 16

    def _open(self, journal: Path) -> None:
        self.api = Arm(self.config)
        self._catalog = Catalog(self.api)
        self.journal = Journal(journal)

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        """See ``Provider.launch``."""
        with self._lock:
            self.journal.forget(self._clock() - KEEP)
            put_off: dict[str, ApiError] = {}
            opened = [r for r in requests if (note := self.journal.get(r.launch_id)) is None or not note.settled]
            if opened:
                try:
                    seen = self._machines()
                except ApiError as error:
                    put_off = dict.fromkeys((r.launch_id for r in opened), error)
                else:
                    self._make(opened, seen, put_off)
            return [self._answer(request, put_off) for request in requests]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """See ``Provider.terminate``."""
        wanted = {i for i in instance_ids if "/" in i}
        if not wanted:
            return
        try:
            listed = {m.instance_id: m for m in self._machines()}
            found = [listed[i] for i in wanted if i in listed]
            found += self._by_name(i.rsplit("/", 1)[-1] for i in wanted if i not in listed)
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error
        self._end(found)

    def instances(self) -> list[Instance]:
        """See ``Provider.instances``."""
        try:
            machines = self._machines()
            listed = {m.owner.launch_id for m in machines}
            recent = [note.launch_id for note in self.journal.recent(self._clock() - LAG)]
            unlisted = self._by_name(i for i in recent if i not in listed and i not in self._over)
        except ApiError as error:
            raise CloudUnavailable(f"{self.name}: {error}") from error
        starting = (InstanceState.PENDING, InstanceState.RUNNING)
        return [m.instance() for m in machines] + [
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
        return images.image(self.name, self.api, self._clock())

    def architectures(self, offerings: Collection[Offering]) -> dict[str, dict[str, frozenset[str]]]:
        """See ``DescribesImages``."""
        with asking(self.name, "Microsoft.Compute/skus/read"):
            return images.architectures(self._catalog.skus(offerings), offerings)

    def quotas(self, offerings: Collection[Offering]) -> dict[str, Ways]:
        """See ``TellsQuotas``."""
        with asking(self.name, "Microsoft.Compute/skus/read"):
            skus = self._catalog.skus(offerings)
        with asking(self.name, "Microsoft.Compute/locations/usages/read"):
            return quotas.ways(self.api.usages(), self.config.region, skus, offerings)

    def prices(self, offerings: Collection[Offering]) -> dict[str, float]:
        """See ``TellsPrices``."""
        return self._catalog.prices(offerings)

    # Launching.

    def _make(self, opened: Sequence[LaunchRequest], seen: Sequence[Machine], put_off: dict[str, ApiError]) -> None:
        """Begin what was not begun, wait a while, settle what is decided. ``put_off`` gets why the others are still open."""
        begun = {m.owner.launch_id for m in seen if m.owner.launch_id}
        fresh = [r for r in opened if r.launch_id not in begun]
        refused: dict[str, ApiError] = {}
        for request in fresh:
            error = self._unfit(request, seen)
            if error is not None:
                (put_off if error.kind is RefusalKind.TRY_LATER else refused)[request.launch_id] = error
        # A gang of which one can't be begun is not begun at all.
        halted = {r.gang for r in fresh if r.gang and (r.launch_id in put_off or r.launch_id in refused)}
        sent = [r for r in fresh if r.launch_id not in put_off and r.launch_id not in refused and r.gang not in halted]
        self._note(opened)
        for request, error in zip(sent, self._each(sent, self._send), strict=True):
            if error is not None:
                (put_off if error.kind is RefusalKind.TRY_LATER else refused)[request.launch_id] = error
        sent_ids = {r.launch_id for r in sent}
        waiting = [
            r for r in opened if (r.launch_id in begun or r.launch_id in sent_ids) and r.launch_id not in refused
        ]
        made = self._wait([r for r in waiting if r.launch_id not in put_off], refused, put_off)
        self._settle(opened, made, refused, put_off)

    def _note(self, opened: Sequence[LaunchRequest]) -> None:
        now = self._clock()
        fresh = [r for r in opened if self.journal.get(r.launch_id) is None]
        if fresh:
            self.journal.save([Note(r.launch_id, r.node, now) for r in fresh])

    def _unfit(self, request: LaunchRequest, seen: Sequence[Machine]) -> ApiError | None:
        """Why the node can't be made now."""
        if not shape.NAME.fullmatch(request.node):
            return ApiError("InvalidParameter", f"{request.node!r} can't be a machine's name: letters, digits and -")
        for machine in seen:
            if machine.name.lower() == request.node.lower():
                if machine.state is InstanceState.GONE:
                    with contextlib.suppress(CloudUnavailable):  # tried again when the node is asked for again
                        self._end([machine])
                text = f"an earlier machine called {machine.name} is {machine.state.value} and not yet deleted"
                return ApiError(NAME_IN_USE, text)
        return None

    def _send(self, request: LaunchRequest) -> ApiError | None:
        known = {k: v for k, v in request.node_config.items() if k in NodeConfig.__dataclass_fields__}
        settings = NodeConfig(**{**known, "node": request.node, "provider": "azure"})
        data = cloud_init(request.node, settings, self._unit)
        try:
            self.api.create(request.node, shape.body(self.config, self.cluster, request, data))
        except ApiError as error:
            return None if error.exists else error
        return None

    def _wait(
        self, waiting: Sequence[LaunchRequest], refused: dict[str, ApiError], put_off: dict[str, ApiError]
    ) -> set[str]:
        """Launch ids of the machines that came about."""
        made: set[str] = set()
        looked: Iterator[tuple[LaunchRequest, Machine | ApiError | None]] = self._watch(waiting, self._look)
        for request, found in looked:
            if isinstance(found, Machine):
                made.add(request.launch_id)
                continue
            error = found or ApiError(CREATING, f"{request.node} is being created")
            (put_off if error.kind is RefusalKind.TRY_LATER else refused)[request.launch_id] = error
        return made

    def _look(self, request: LaunchRequest) -> Machine | ApiError | None:
        """The machine once it is there, why it failed, or None while it is being created."""
        try:
            shown = self.api.get(request.node)
        except ApiError as error:
            return error if error.kind is RefusalKind.TRY_LATER else ApiError(NO_ANSWER, str(error))
        if shown is None:
            return ApiError(NO_ANSWER, f"{request.node} is not there (any more); asked again")
        machine = shape.read(shown, self.cluster)
        if machine is None:
            return ApiError(
                "InvalidParameter", f"a machine called {request.node}, not this cluster's, is there already"
            )
        if machine.owner.launch_id != request.launch_id:
            return ApiError(NAME_IN_USE, f"an earlier machine called {request.node} is not yet deleted")
        if machine.provisioning == "Failed":
            return machine.failure or ApiError("ProvisioningFailed", "provisioning failed")
        if machine.provisioning == "Deleting":
            return ApiError(NAME_IN_USE, f"{request.node} is being deleted")
        return None if machine.provisioning in ("", "Creating") else machine

    def _settle(
        self,
        opened: Sequence[LaunchRequest],
        made: set[str],
        refused: Mapping[str, ApiError],
        put_off: dict[str, ApiError],
    ) -> None:
        """Write down what is decided; a gang when all of it is, or as soon as one is refused. Ends what is not to stay."""
        groups: dict[str, list[LaunchRequest]] = {}
        for request in opened:
            groups.setdefault(request.gang or request.launch_id, []).append(request)
        changed: list[Note] = []
        ending: list[LaunchRequest] = []
        for group in groups.values():
            errors = [refused[r.launch_id] for r in group if r.launch_id in refused]
            later = [put_off[r.launch_id] for r in group if r.launch_id in put_off]
            for request in group:
                note = self.journal.get(request.launch_id)
                if note is None:
                    continue
                if errors:
                    note.refuse(most_telling(errors))
                    ending.append(request)
                elif request.launch_id in made and not later:
                    note.made = True
                else:
                    put_off.setdefault(request.launch_id, later[0] if later else ApiError(CREATING, "under way"))
                    continue
                changed.append(note)
        if changed:
            self.journal.save(changed)
        # Written down first: should this be cut off, they are refused launches with a machine, which the manager ends.
        with contextlib.suppress(CloudUnavailable):
            self._end([m for m in self._named(ending) if m is not None])

    def _named(self, requests: Sequence[LaunchRequest]) -> list[Machine | None]:
        def find(request: LaunchRequest) -> Machine | None:
            with contextlib.suppress(ApiError):
                shown = self.api.get(request.node)
                machine = shape.read(shown, self.cluster) if shown is not None else None
                if machine is not None and machine.owner.launch_id == request.launch_id:
                    return machine
            return None

        return self._each(requests, find)

    def _answer(self, request: LaunchRequest, put_off: Mapping[str, ApiError]) -> Launched | Refused:
        launch_id = request.launch_id
        note = self.journal.get(launch_id)
        if note is not None and note.made:
            return Launched(launch_id, shape.instance_id(note.node, launch_id))
        if note is not None and (refusal := note.refusal) is not None:
            return refusal.refuse(launch_id)
        error = put_off.get(launch_id) or ApiError(CREATING, "under way")
        later = error if error.kind is RefusalKind.TRY_LATER else ApiError(NO_ANSWER, str(error))
        return later.refuse(launch_id)

    # Machines.

    def _machines(self) -> list[Machine]:
        """All of this cluster and provider that the listing shows. Raises ``ApiError``."""
        found = [m for shown in self.api.machines() if (m := shape.read(shown, self.cluster)) is not None]
        return [m for m in found if m.owner.offering_id.partition("/")[0] in ("", self.name)]

    def _by_name(self, wanted: Iterable[str]) -> list[Machine]:
        """The machines of these launches, each asked for by its name: listings may lag behind. Raises ``ApiError``."""
        found = []
        for launch_id in wanted:
            try:
                note = self.journal.get(launch_id)
            except ValueError:  # no launch id at all
                continue
            shown = self.api.get(note.node) if note is not None and note.made else None
            machine = shape.read(shown, self.cluster) if shown is not None else None
            if machine is not None and machine.owner.launch_id == launch_id:
                found.append(machine)
            else:
                self._over.add(launch_id)
        return found

    def _end(self, machines: Sequence[Machine]) -> None:
        """Delete them, each whatever becomes of the others. Raises ``CloudUnavailable`` that tells of those that could not be."""

        def end(machine: Machine) -> str:
            try:
                self.api.delete(machine.name)
            except ApiError as error:
                return f"{machine.name}: {error}"
            return ""

        self._delete([m for m in machines if m.provisioning != "Deleting"], end)
