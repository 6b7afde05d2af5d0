"""What a pass sees: values only. None stands for "unknown", which is never "nothing there"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from job_wrapper.interval import FIRST
from slurm_plugin.cloud.provider import Instance, Offering
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.config import Config, NodeSet
from slurm_plugin.ledger_records import Charge, Counter, Intent, OpenNotice, Replacement, SeenJob, Spent
from slurm_plugin.placement import Knowledge, OfferingState, Rules
from slurm_plugin.requests import Request
from slurm_plugin.requeue import Limits, RunTail
from slurm_plugin.slurm.records import Job, Node, Partition


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node of a nodeset has."""

    cpus: int
    memory_mb: int
    gpus: int
    features: frozenset[str]

    @property
    def size(self) -> MachineSize:
        """What its machine must have."""
        return MachineSize(self.cpus, self.memory_mb, self.gpus)

    def holds(self, other: Shape) -> bool:
        """Whether whatever ran on ``other`` runs here too. Features are looked at by job, not here."""
        return self.cpus >= other.cpus and self.memory_mb >= other.memory_mb and self.gpus >= other.gpus


@dataclass(frozen=True, slots=True)
class NodeSetFacts:
    """A nodeset as deciding needs it."""

    name: str
    shape: Shape
    offerings: tuple[Offering, ...]
    providers: frozenset[str]
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True, slots=True)
class Policy:
    """burst.yaml as deciding needs it, made once. Times in seconds."""

    nodesets: Mapping[str, NodeSetFacts]
    nodeset_of: Mapping[str, str]
    """Node to nodeset, for all nodes of ours."""
    offerings: Mapping[str, Offering]
    gpus: Mapping[str, str] = field(default_factory=dict)
    """GPU type by offering id."""
    scattered: frozenset[str] = frozenset()
    """See ``Knowledge``."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What each offering is bought with, as a digest, by offering id."""
    silent_prepare: float = 20.0
    silent_down: float = 60.0
    orphan_grace: float = 120.0
    requeue_window: float = 240.0
    idle_told: float = 10.0
    """Idle time after which a node that a job comes back to is told that it is idle, where its partition shows no SuspendTime of its own.
    `spotburst check` tells of one that is too short."""
    limits: Limits = field(default_factory=Limits)
    least_attempt: float = 600.0
    """What an attempt takes at least until it has something to show for its cost: the interval of checkpoints."""

    @classmethod
    def of(cls, config: Config) -> Policy:
        """From the settings."""
        nodesets = {n.name: _facts(config, n) for n in config.nodesets}
        return cls(
            nodesets=nodesets,
            nodeset_of={node: n.name for n in config.nodesets for node in n.node_names},
            offerings={o.id: o for facts in nodesets.values() for o in facts.offerings},
            gpus={id_: gpu for n in config.nodesets for id_, gpu in config.gpus_of(n).items()},
            scattered=config.scattered(),
            settings={o.id: config.digest_of(o) for facts in nodesets.values() for o in facts.offerings},
            silent_prepare=config.manager.silent_prepare,
            silent_down=config.manager.silent_down,
            orphan_grace=config.manager.orphan_grace,
            requeue_window=config.manager.requeue_window,
            idle_told=min(30.0, config.power.suspend_time) / 3,
            limits=Limits(
                max_attempts=config.recovery.max_attempts,
                max_attempts_multi_node=config.recovery.max_attempts_multi_node,
                barren_attempts=config.recovery.barren_attempts,
            ),
            least_attempt=config.checkpoints.interval or FIRST,  # auto: as the wrapper's first
        )


def _facts(config: Config, nodeset: NodeSet) -> NodeSetFacts:
    offerings = config.offerings_of(nodeset)
    return NodeSetFacts(
        name=nodeset.name,
        shape=Shape(
            cpus=nodeset.cpus,
            memory_mb=nodeset.memory_mb,
            gpus=nodeset.gpus.count if nodeset.gpus else 0,
            # The rendered slurm.conf gives each node its nodeset's name as a feature.
            features=frozenset((nodeset.name, *nodeset.features)),
        ),
        offerings=offerings,
        providers=frozenset(o.provider for o in offerings),
        rules=config.rules_of(nodeset),
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """A provider's machines, as they were when the listing began (``at``, Unix seconds)."""

    at: float
    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class BootFacts:
    """What tells a node that boots from one that slurmctld takes for booting though its slurmd has long run. Times in Unix seconds."""

    slurmctld_began: float | None = None
    """When slurmctld's process did, as of a minute ago or less. None: not known."""
    answers_since: float | None = None
    """Since when slurmctld has answered each pass. None: it does not now."""
    listening_since: Mapping[str, float] = field(default_factory=dict)
    """By launch id, of machines that are older than slurmctld and were never seen as nodes: those whose slurmd takes connections, and since
    when without a break."""
    health_check: bool = False
    """slurmd runs HealthCheckProgram before it registers."""


@dataclass(frozen=True, slots=True)
class View:
    """One pass's observation. ``nodes``, ``jobs`` and a provider's listing are None where they could not be had."""

    now: float
    """Unix seconds at the end of the look."""
    policy: Policy
    nodes: Mapping[str, Node] | None
    jobs: tuple[Job, ...] | None
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    clouds: Mapping[str, Listing | None] = field(default_factory=dict)
    intents: tuple[Intent, ...] = ()
    notices: tuple[OpenNotice, ...] = ()
    replacements: tuple[Replacement, ...] = ()
    offerings: Mapping[str, OfferingState] = field(default_factory=dict)
    known: Knowledge = field(default_factory=Knowledge)
    requests: tuple[Request, ...] = ()
    seen: Mapping[int, SeenJob] = field(default_factory=dict)
    counters: Mapping[tuple[str, str], Counter] = field(default_factory=dict)
    charges: Mapping[tuple[int, int, str], Charge] = field(default_factory=dict)
    """Nodes that jobs are being charged for, by job, restart count and node."""
    spent: Mapping[int, Spent] = field(default_factory=dict)
    """By job."""
    silent_since: Mapping[str, float] = field(default_factory=dict)
    """Nodes whose slurmd can't be reached, and since when. A node that is not here was reached, or not yet tried."""
    own_network_suspect: bool = False
    """All nodes went silent together: rather the manager's own network, so no node is set down for silence."""
    missing_since: Mapping[str, float] = field(default_factory=dict)
    """Launch ids that a successful listing lacked, and since when without a break."""
    absent_since: Mapping[str, float] = field(default_factory=dict)
    """Nodes that have machines and that Slurm does not know, and since when without a break."""
    stranded_since: Mapping[str, float] = field(default_factory=dict)
    """Nodes that are off though a job runs on them by Slurm's records, or boot though they have registered, and since when without a break."""
    boots: BootFacts = field(default_factory=BootFacts)
    began: float | None = None
    """When the look began, if that was told: what it shows of nodes and jobs is no older."""
    runs: Mapping[int, tuple[RunTail, ...]] = field(default_factory=dict)
    """Of ended jobs: the newest entry of each of their runs. A job that is not here has not been looked up yet."""

    @property
    def as_of(self) -> float:
        """What happened up to then is in it."""
        return self.now if self.began is None else self.began

    @property
    def silent_providers(self) -> frozenset[str]:
        """Providers whose machines are unknown now."""
        return frozenset(name for name, listing in self.clouds.items() if listing is None)
