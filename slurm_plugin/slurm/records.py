"""Jobs, nodes and partitions as Slurm shows them, in values that every version's client can fill."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One job (one array task, one heterogeneous component).

    ``states`` is a set of flags such as ``{"PENDING"}`` or ``{"PENDING", "COMPLETING"}``; never compare it with ``==``. ``name_id`` is the
    id that users type (``123``, ``123_4``). Times are Unix seconds, 0 where Slurm has none. ``nodes`` are names, expanded.
    """

    job_id: int
    name_id: str
    states: frozenset[str]
    reason: str
    partition: str
    user: str
    user_id: int
    nodes: tuple[str, ...] = ()
    node_count: int = 1
    restart_count: int = 0
    requeue: bool = True
    batch: bool = True
    priority: int = 0
    submit_time: int = 0
    eligible_time: int = 0
    start_time: int = 0
    end_time: int = 0
    preempt_time: int = 0
    deadline: int = 0
    time_limit: int = 0
    """Seconds."""
    exit_code: int = 0
    exit_signal: int = 0
    comment: str = ""
    admin_comment: str = ""
    name: str = ""
    gpus_per_node: int = 0
    features: str = ""
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()

    def has(self, *states: str) -> bool:
        """Whether any of the flags is set."""
        return not self.states.isdisjoint(states)

    @property
    def partitions(self) -> frozenset[str]:
        """Those that it may run in: one that waits may name several."""
        return frozenset(self.partition.split(","))

    @property
    def running(self) -> bool:
        """Its steps run: not waiting for its nodes to boot (which Slurm calls RUNNING too), and not on its way out."""
        return "RUNNING" in self.states and not self.has("CONFIGURING", "COMPLETING")


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``states`` holds base state and flags alike: ``{"IDLE", "CLOUD", "POWERED_DOWN"}``."""

    name: str
    states: frozenset[str]
    reason: str = ""
    address: str = ""
    hostname: str = ""
    port: int = 6818
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gres: str = ""
    cpus: int = 1
    boot_time: int = 0
    last_busy: int = 0
    slurmd_start_time: int = 0

    def has(self, *states: str) -> bool:
        """Whether any of the flags is set."""
        return not self.states.isdisjoint(states)

    @property
    def up(self) -> bool:
        """Registered and usable: its slurmd answers and it is neither down nor on its way up or down."""
        return not self.has(
            "DOWN",
            "POWERED_DOWN",
            "POWERING_DOWN",
            "POWERING_UP",
            "POWER_UP",
            "NOT_RESPONDING",
            "UNKNOWN",
            "FUTURE",
        )


@dataclass(frozen=True, slots=True)
class Start:
    """slurmctld's. ``began``: Unix seconds, to the second. ``health_check``: it has a HealthCheckProgram."""

    began: float
    health_check: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. ``grace_time`` in seconds; ``suspend_time`` too: None where it is the whole cluster's, infinite for never."""

    name: str
    nodes: tuple[str, ...]
    priority_tier: int = 1
    grace_time: int = 0
    preempt_mode: str = "OFF"
    default: bool = False
    suspend_time: float | None = None
