"""burst.yaml: the one file an administrator writes. Parsed into frozen, validated models.

Where it is looked for: ``$SPOTBURST_CONFIG``, then beside ``$SLURM_CONF`` (Slurm's power-save programs have that variable and
nothing else), then ``/etc/slurm/burst.yaml``, then ``/etc/spotburst/burst.yaml``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from job_wrapper.errors import StoreRefused
from job_wrapper.store.open import scheme_of
from job_wrapper.store.shown import without_end
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.config_faults import explain, read_yaml
from slurm_plugin.config_placement import Placement
from slurm_plugin.config_providers import (
    AwsProvider,
    AzureProvider,
    CloudProvider,
    GcpProvider,
    LocalProvider,
    OfferingConfig,
    ProviderConfig,
)
from slurm_plugin.config_types import Duration, Interval, Model, Name, Period, parse_duration
from slurm_plugin.errors import ConfigError
from slurm_plugin.placement import Knowledge, Rules, excluded
from slurm_plugin.slurm.hostlist import expand

__all__ = [
    "AwsProvider",
    "AzureProvider",
    "CloudProvider",
    "Config",
    "Duration",
    "GcpProvider",
    "LocalProvider",
    "Model",
    "Name",
    "OfferingConfig",
    "Period",
    "ProviderConfig",
    "find_config",
    "load_config",
    "parse_duration",
]


class Slurm(Model):
    """How to reach Slurm."""

    client: Literal["auto", "cli", "pyslurm"] = "auto"
    """How the manager asks: by Slurm's commands or by pyslurm; auto takes pyslurm where one is installed for this Slurm."""
    conf: Path = Path("/etc/slurm/slurm.conf")
    bin_dir: Path | None = None
    """Folder of sinfo, squeue and scontrol; None: PATH, then /usr/bin."""


class Checkpoints(Model):
    """Where checkpoints go and how they are kept. ``uri``: ``file:///shared/dir``, ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``."""

    uri: str
    endpoint_url: str | None = None
    """For a server that is not the cloud's own. Credentials come from the environment of the job or the machine's role."""
    interval: Interval = 0.0
    """``auto`` (0): by what a save costs and how often machines are taken back; or a fixed one."""
    keep: Annotated[int, Field(ge=1)] = 3
    keep_ended: Period = 7 * 86400.0
    """How long after a run's end the manager leaves its checkpoints there."""

    @field_validator("uri")
    @classmethod
    def _scheme(cls, value: str) -> str:
        try:
            if "://" not in value:
                raise StoreRefused(f"{value!r} has no known scheme: use file:///shared/dir or s3://bucket/prefix")
            scheme_of(value)
        except StoreRefused as error:
            raise ValueError(str(error)) from None
        return without_end(value)


class Manager(Model):
    """The loop on the controller."""

    interval: Period = 2.0
    """Between passes when nothing is going on."""
    busy_interval: Period = 0.25
    """Between passes while a node boots or a job is being brought back."""
    silent_prepare: Duration = 20.0
    """A node that can't be reached this long gets a replacement prepared."""
    silent_down: Duration = 60.0
    """A node that can't be reached this long is set down, which requeues its jobs."""
    orphan_grace: Duration = 120.0
    """A machine this young is never taken for an orphan (listings and Slurm's own view lag)."""
    requeue_window: Duration = 240.0
    """How long after its end a job that lost its wrapper may be requeued; keep it below Slurm's MinJobAge (300 s)."""


class Monitoring(Model):
    """What the manager shows of the cluster: a page for people and metrics for Prometheus (docs/monitoring.md). On 127.0.0.1 only."""

    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """None: nothing is shown."""
    jobs: bool = True
    """False: no ids of jobs, for a site whose users may not see each other's (Slurm's PrivateData=jobs)."""


class Recovery(Model):
    """When to stop bringing a job back (DESIGN §5)."""

    max_attempts: Annotated[int, Field(ge=1)] = 8
    max_attempts_multi_node: Annotated[int, Field(ge=1)] = 3
    barren_attempts: Annotated[int, Field(ge=1)] = 2
    """Attempts in a row without progress."""


class Gpus(Model):
    """GPUs of a node, as gres.conf needs them. ``files`` are device files, one a GPU."""

    type: Name = "gpu"
    count: Annotated[int, Field(ge=1)]
    files: tuple[str, ...]

    @model_validator(mode="after")
    def _one_file_each(self) -> Gpus:
        if len(self.files) != self.count:
            raise ValueError(
                f"count is {self.count} but files names {len(self.files)}: Slurm needs one device file a GPU, "
                "such as /dev/nvidia0 (a Count without File makes the node INVAL)"
            )
        return self


class NodeSet(Model):
    """Slurm nodes of one shape, with the offerings that can fill them."""

    name: Name
    nodes: str
    """Slurm hostlist, such as ``spot-[1-16]``."""
    cpus: Annotated[int, Field(ge=1)]
    memory_mb: Annotated[int, Field(ge=1)]
    gpus: Gpus | None = None
    features: tuple[Name, ...] = ()
    offerings: Annotated[tuple[OfferingConfig, ...], Field(min_length=1)]
    placement: Placement = Placement()

    @field_validator("nodes")
    @classmethod
    def _hostlist(cls, value: str) -> str:
        try:
            names = expand(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if not names:
            raise ValueError("names no node: write a Slurm hostlist such as spot-[1-16]")
        return value

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """The names, expanded."""
        return expand(self.nodes)

    @property
    def size(self) -> MachineSize:
        """What its nodes have by their line in slurm.conf."""
        return MachineSize(self.cpus, self.memory_mb, self.gpus.count if self.gpus else 0)


class PartitionConfig(Model):
    """A Slurm partition over nodesets, as the rendered slurm.conf has it."""

    name: Name
    nodesets: Annotated[tuple[Name, ...], Field(min_length=1)]
    default: bool = False
    priority_tier: Annotated[int, Field(ge=0, le=65533)] = 1
    preempt_mode: Literal["requeue", "cancel", "off"] = "requeue"
    grace_time: Duration = 0.0
    max_time: str = "UNLIMITED"


class Power(Model):
    """Slurm's power saving, as the rendered slurm.conf has it. Whole seconds."""

    suspend_time: Duration = 300.0
    suspend_timeout: Duration = 30.0
    resume_timeout: Duration = 600.0


class Config(Model):
    """The whole of burst.yaml."""

    cluster: Name
    """ClusterName of slurm.conf."""
    state_dir: Path = Path("/var/lib/spotburst")
    """Ledger, requests and lock. Private to SlurmUser; on shared storage beside StateSaveLocation for fail-over."""
    slurm: Slurm = Slurm()
    checkpoints: Checkpoints
    manager: Manager = Manager()
    monitoring: Monitoring = Monitoring()
    recovery: Recovery = Recovery()
    power: Power = Power()
    placement: Placement = Placement()
    prices: Path | None = None
    """A table of prices (docs/placement.md)."""
    providers: dict[Name, ProviderConfig]
    nodesets: Annotated[tuple[NodeSet, ...], Field(min_length=1)]
    partitions: Annotated[tuple[PartitionConfig, ...], Field(min_length=1)]

    @field_validator("state_dir", "prices")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        # Slurm's programs and the manager run in different folders.
        if value is not None and not value.is_absolute():
            raise ValueError("must be an absolute path")
        return value

    @model_validator(mode="after")
    def _names_agree(self) -> Config:
        names = {n.name for n in self.nodesets}
        if len(names) != len(self.nodesets):
            raise ValueError("nodesets: two have the same name")
        seen: dict[str, str] = {}
        for nodeset in self.nodesets:
            for node in nodeset.node_names:
                if node in seen:
                    raise ValueError(f"nodesets: node {node} is in both {seen[node]!r} and {nodeset.name!r}")
                seen[node] = nodeset.name
            for offering in nodeset.offerings:
                if offering.provider not in self.providers:
                    raise ValueError(
                        f"nodesets.{nodeset.name}.offerings: provider {offering.provider!r} is not defined under providers; "
                        f"defined: {', '.join(sorted(self.providers)) or 'none'}"
                    )
                provider = self.providers[offering.provider]
                fault = provider.unfit(offering) if isinstance(provider, CloudProvider) else ""
                if fault:
                    raise ValueError(
                        f"nodesets.{nodeset.name}.offerings: providers.{offering.provider} can't fill "
                        f"{offering.instance_type}: {fault}"
                    )
            offerings, rules = self.offerings_of(nodeset), self.rules_of(nodeset)
            known = Knowledge(gpus=self.gpus_of(nodeset))
            faults = [excluded(offering, replace(rules, max_price=None), known) for offering in offerings]
            if all(faults):
                raise ValueError(
                    f"nodesets.{nodeset.name}.offerings: placement excludes every one of them: "
                    + "; ".join(f"{o.id}: {fault}" for o, fault in zip(offerings, faults, strict=True))
                )
        queues = [url for p in self.providers.values() if (url := getattr(p, "events_queue", None))]
        if len(set(queues)) != len(queues):
            raise ValueError(
                "providers: two have the same events_queue; each needs one of its own: a message is read once"
            )
        if len({p.name for p in self.partitions}) != len(self.partitions):
            raise ValueError("partitions: two have the same name")
        if sum(p.default for p in self.partitions) > 1:
            raise ValueError("partitions: more than one is the default")
        for partition in self.partitions:
            for name in partition.nodesets:
                if name not in names:
                    raise ValueError(
                        f"partitions.{partition.name}.nodesets: {name!r} is not a nodeset; defined: {', '.join(sorted(names))}"
                    )
        return self

    def nodeset_of(self, node: str) -> NodeSet | None:
        """The nodeset that a node belongs to; None for a node that is not ours."""
        return self._nodeset_of.get(node)

    @cached_property
    def _nodeset_of(self) -> dict[str, NodeSet]:
        return {node: nodeset for nodeset in self.nodesets for node in nodeset.node_names}

    def rules_of(self, nodeset: NodeSet) -> Rules:
        """How the nodeset's offerings are chosen from."""
        return nodeset.placement.over(self.placement).rules()

    def gpus_of(self, nodeset: NodeSet) -> dict[str, str]:
        """GPU type by offering id, where one is named."""
        usual = nodeset.gpus.type if nodeset.gpus else ""
        ids = (offering.id for offering in self.offerings_of(nodeset))
        return {id_: o.gpu or usual for id_, o in zip(ids, nodeset.offerings, strict=True) if o.gpu or usual}

    def scattered(self) -> frozenset[str]:
        """Ids of offerings whose cloud does not keep the machines of one call in one zone."""
        found = set()
        for nodeset in self.nodesets:
            for offering, settings in zip(self.offerings_of(nodeset), nodeset.offerings, strict=True):
                provider = self.providers[settings.provider]
                if isinstance(provider, CloudProvider) and provider.scatters(settings):
                    found.add(offering.id)
        return frozenset(found)

    def digest_of(self, offering: Offering) -> str:
        """Of all that the offering is bought with: another one after a change of its provider's settings."""
        settings = self.providers[offering.provider].model_dump_json()
        return hashlib.sha256(f"{offering.id}\n{settings}".encode()).hexdigest()

    def offerings_of(self, nodeset: NodeSet) -> tuple[Offering, ...]:
        """The nodeset's offerings in order of preference."""
        return tuple(
            Offering(
                provider=o.provider,
                region=getattr(self.providers[o.provider], "region", "local"),
                zone=o.zone,
                instance_type=o.instance_type,
                market=o.market,
            )
            for o in nodeset.offerings
        )

    def offerings_at(self, provider: str) -> frozenset[Offering]:
        """All that any nodeset may be bought as from that provider."""
        return frozenset(o for nodeset in self.nodesets for o in self.offerings_of(nodeset) if o.provider == provider)


def find_config(environ: Mapping[str, str] = os.environ) -> Path:
    """The file to read; raises ``ConfigError`` that lists the places looked at."""
    named = environ.get("SPOTBURST_CONFIG")
    if named:
        return Path(named)
    places = []
    if environ.get("SLURM_CONF"):
        places.append(Path(environ["SLURM_CONF"]).parent / "burst.yaml")
    places += [Path("/etc/slurm/burst.yaml"), Path("/etc/spotburst/burst.yaml")]
    for place in places:
        if place.is_file():
            return place
    hint = "" if environ.get("SLURM_CONF") else ", or export SLURM_CONF: burst.yaml is looked for beside it"
    raise ConfigError(
        f"no burst.yaml found: looked at {', '.join(map(str, places))}; name one with --config or SPOTBURST_CONFIG{hint}"
    )


def load_config(path: Path) -> Config:
    """Read and validate. Raises ``ConfigError`` that names the file, the key, what stands there and what is allowed."""
    data = read_yaml(path)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(path, Config, error)) from None
