"""A Slurm in memory that implements ``SlurmClient``, as 22.05.8 was seen to act."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm.records import Job, Node, Partition, Start

if TYPE_CHECKING:
    from tests.unit.manager.world import World


RESUME_TIMEOUT = 90.0
SUSPEND_TIMEOUT = 10.0
SUSPEND_TIME = 200.0
SLURMD_TIMEOUT = 300.0
REQUEUE_DELAY = 121.0


@dataclass
class SimNode:
    name: str
    down: bool = False
    flags: set[str] = field(default_factory=lambda: {"POWERED_DOWN"})
    reason: str = ""
    since: float = 0.0
    """When its power state last changed."""
    idle_since: float = 0.0
    lost_since: float | None = None
    address: str = ""
    """Where it was set and the node has not registered since."""


@dataclass
class SimJob:
    record: Job
    work: float
    done: float = 0.0
    begin: float = 0.0
    config_left: float = 0.0


class FakeSlurm:
    """slurmctld."""

    def __init__(self, world: World, names: Sequence[str], idle_on_node_suspend: bool) -> None:
        self.world = world
        self.idle_on_node_suspend = idle_on_node_suspend
        self.node = {name: SimNode(name) for name in names}
        self.job: dict[int, SimJob] = {}
        self.unreachable = False
        self.began = world.clock()
        self.asked = 0
        """How often it was asked when it began."""
        self.refuse: set[str] = set()
        self.deaf = False
        """No wrapper answers."""
        self.log: list[tuple[float, str, str]] = []

    # --- the protocol -------------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int, int]:
        return 22, 5, 8

    def slurmctld_start(self) -> Start:
        self._answer()
        self.asked += 1
        return Start(self.began)

    def _answer(self) -> None:
        if self.unreachable:
            raise SlurmUnavailable("slurm_load: Unable to contact slurm controller")

    def jobs(self) -> tuple[Job, ...]:
        self._answer()
        return tuple(job.record for job in self.job.values())

    def nodes(self) -> tuple[Node, ...]:
        self._answer()
        return tuple(self.record(node) for node in self.node.values())

    def record(self, node: SimNode) -> Node:
        base = "DOWN" if node.down else "ALLOCATED" if self.on(node.name) else "IDLE"
        return Node(
            node.name,
            frozenset({base, "CLOUD", *node.flags}),
            node.reason,
            node.address or node.name,
            node.name,
            partitions=("spot",),
            last_busy=int(node.idle_since),
        )

    def partitions(self) -> tuple[Partition, ...]:
        self._answer()
        return (Partition("spot", tuple(self.node), preempt_mode="REQUEUE"),)

    def update_nodes(
        self, names: Iterable[str], *, state: str | None = None, reason: str | None = None, address: str | None = None
    ) -> None:
        names = list(names)
        self._answer()
        if address is not None and len(address.split(",")) != len(names):
            raise SlurmRefused("Invalid node name specified")
        refused = []
        for name in names:
            self.world.killer.act()
            if name not in self.node or name in self.refuse:
                refused.append(name)
            else:
                if address is not None:
                    self.node[name].address = address.split(",")[0]
                if state is not None:
                    self.log.append((self.world.clock(), name, state))
                    self._update(self.node[name], state, reason, refused)
            self.world.killer.act()
        if refused:
            raise SlurmRefused(f"Invalid node state specified: {refused}")

    def _update(self, node: SimNode, state: str, reason: str | None, refused: list[str]) -> None:
        now = self.world.clock()
        if reason is not None:
            node.reason = reason
        if state == "down":
            node.down = True
            self._requeue_on(node.name)
        elif state == "drain":
            node.flags.add("DRAIN")
            if "POWERING_UP" in node.flags or "POWERED_DOWN" in node.flags:
                self._requeue_on(node.name)
        elif state == "undrain":
            node.flags.discard("DRAIN")
            if not node.down:
                node.reason = ""
        elif state == "power_up":
            if "POWERING_UP" not in node.flags:
                node.flags.add("POWER_UP")
        elif state == "power_down":
            if "POWERING_DOWN" not in node.flags:
                node.flags.add("POWER_DOWN")
        elif state == "power_down_force":
            if "POWERING_DOWN" not in node.flags:
                self._requeue_on(node.name)
                node.flags -= {"POWERING_UP"}
                node.flags.add("POWER_DOWN")
        elif state == "resume":
            if not node.down and not node.flags & {"DRAIN", "POWERING_DOWN", "NOT_RESPONDING"}:
                refused.append(node.name)
                return
            node.down = False
            node.reason = ""
            node.flags -= {"DRAIN"}
            if "POWERING_DOWN" in node.flags:
                node.flags -= {"POWERING_DOWN", "POWER_DOWN"}
                node.flags |= {"POWERED_DOWN"}
                node.since = now
        elif state == "idle":
            node.flags -= {"DRAIN"}
            node.idle_since = now
        else:
            raise AssertionError(state)

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        self._answer()
        self.world.killer.act()
        self._requeue(self.job[int(job_id)])
        if hold:
            self._hold(job_id)
        self.world.killer.act()

    def start_now(self, job_id: str) -> None:
        self._answer()
        self.world.killer.act()
        job = self.job[int(job_id)]
        if "PENDING" in job.record.states:
            job.begin = self.world.clock()
            job.record = replace(job.record, reason="None", eligible_time=int(job.begin))
        self.world.killer.act()

    def hold(self, job_id: str, *, releasable: bool = False) -> None:
        self._answer()
        self.world.killer.act()
        assert releasable, "its owner must be able to let it go"
        self._hold(job_id)
        self.world.killer.act()

    def _hold(self, job_id: str) -> None:
        job = self.job[int(job_id)]
        job.record = replace(job.record, priority=0)

    def signal(self, job_id: str, name: str) -> None:
        """The wrapper of a held job commits, and has it requeued held."""
        self._answer()
        self.world.killer.act()
        job = self.job[int(job_id)]
        if name == "URG" and job.record.running and job.record.priority == 0 and not self.deaf:
            self._requeue(job)
        self.world.killer.act()

    def end(self, job_id: str) -> None:
        self._answer()
        self.world.killer.act()
        job = self.job[int(job_id)]
        if job.record.has("PENDING", "RUNNING"):
            job.record = replace(job.record, states=frozenset({"CANCELLED"}), end_time=int(self.world.clock()))
        self.world.killer.act()

    def release(self, job_id: str) -> None:
        self._answer()
        job = self.job[int(job_id)]
        job.record = replace(job.record, priority=10, reason="None")

    def cancel(self, job_id: str) -> None:
        self._answer()
        self.world.killer.act()
        job = self.job[int(job_id)]
        if "PENDING" in job.record.states:
            job.record = replace(job.record, states=frozenset({"CANCELLED"}))
        self.world.killer.act()

    def comment(self, job_id: str) -> str | None:
        self._answer()
        job = self.job.get(int(job_id))
        return None if job is None else job.record.comment

    def set_comment(self, job_id: str, comment: str) -> None:
        self._answer()
        job = self.job.get(int(job_id))
        if job is not None:
            job.record = replace(job.record, comment=comment)

    def set_admin_comment(self, job_id: str, comment: str) -> None:
        self._answer()
        job = self.job[int(job_id)]
        assert job.record.has("PENDING", "RUNNING"), "Slurm takes none of a job that has ended"
        job.record = replace(job.record, admin_comment=comment)

    # --- what users and tests do --------------------------------------------------------------------------------------

    def submit(self, work: float, nodes: int = 1, **changes: object) -> int:
        job_id = len(self.job) + 1
        now = int(self.world.clock())
        record = Job(
            job_id, str(job_id), frozenset({"PENDING"}), "None", "spot", "u", 1000,
            node_count=nodes, priority=10, submit_time=now, eligible_time=now,
        )  # fmt: skip
        self.job[job_id] = SimJob(replace(record, **changes), work)  # type: ignore[arg-type]
        return job_id

    def on(self, node: str) -> list[SimJob]:
        return [j for j in self.job.values() if node in j.record.nodes and "RUNNING" in j.record.states]

    # --- time ---------------------------------------------------------------------------------------------------------

    def _requeue_on(self, node: str) -> None:
        for job in self.on(node):
            self._requeue(job)

    def _requeue(self, job: SimJob) -> None:
        now = self.world.clock()
        job.begin = now + REQUEUE_DELAY
        job.record = replace(
            job.record,
            states=frozenset({"PENDING"}),
            reason="BeginTime",
            nodes=(),
            restart_count=job.record.restart_count + 1,
            submit_time=int(now),
            eligible_time=int(job.begin),
            preempt_time=0,
            end_time=0,
        )

    def tick(self) -> None:
        for node in self.node.values():
            self._power(node)
        self._schedule()
        for job in self.job.values():
            self._run(job)

    def _power(self, node: SimNode) -> None:
        now, f = self.world.clock(), node.flags
        machine = self.world.cloud.serving(node.name)
        busy = bool(self.on(node.name))
        if busy:
            node.idle_since = now
        if "POWERING_UP" in f:
            if (
                machine is not None
                and machine.born >= node.since
                and machine.state(now) in (InstanceState.RUNNING, InstanceState.RECLAIMING)
            ):
                f -= {"POWERING_UP", "NOT_RESPONDING"}
                node.idle_since, node.lost_since, node.address = now, None, ""
                if node.down and node.reason.startswith(("ResumeTimeout", "Not resp")):
                    node.down, node.reason = False, ""
            elif now - node.since > RESUME_TIMEOUT:
                self._requeue_on(node.name)
                f -= {"POWERING_UP", "DRAIN", "POWER_DOWN"}
                f |= {"POWERED_DOWN", "NOT_RESPONDING"}
                node.down, node.reason, node.since = True, "ResumeTimeout reached", now
                self.world.request("resume_fail", [node.name])
            elif node.down and "POWER_DOWN" in f:
                f -= {"POWERING_UP"}
            return
        if "POWERING_DOWN" in f:
            if now - node.since >= SUSPEND_TIMEOUT:
                f -= {"POWERING_DOWN", "POWER_DOWN"}
                f |= {"POWERED_DOWN"}
                node.since = now
            return
        if "POWER_UP" in f or (
            "POWERED_DOWN" in f and any("CONFIGURING" in j.record.states for j in self.on(node.name))
        ):
            f -= {"POWER_UP", "POWERED_DOWN"}
            f |= {"POWERING_UP", "NOT_RESPONDING"}
            node.since = now
            self.world.request("resume", [node.name])
            return
        up = "POWERED_DOWN" not in f
        if up and not busy and now - node.idle_since > SUSPEND_TIME and "POWER_DOWN" not in f:
            f.add("POWER_DOWN")
        if "POWER_DOWN" in f and (node.down or not busy):
            f -= {"POWER_DOWN", "POWERED_DOWN", "NOT_RESPONDING"}
            f |= {"POWERING_DOWN"}
            node.since, node.address = now, ""
            if self.idle_on_node_suspend:
                node.down = False
                f.discard("DRAIN")
            self.world.request("suspend", [node.name])
            return
        if up and machine is None and not node.down:
            node.lost_since = node.lost_since or now
            if now - node.lost_since > SLURMD_TIMEOUT:
                node.down, node.reason = True, "Not responding"
                self._requeue_on(node.name)
        else:
            node.lost_since = None

    def _schedule(self) -> None:
        now = self.world.clock()
        for job in self.job.values():
            r = job.record
            if "PENDING" not in r.states or r.priority == 0:
                continue
            if job.begin > now:
                continue
            if r.reason == "BeginTime":
                job.record = r = replace(r, reason="None")
            free = [
                n
                for n in self.node.values()
                if not n.down and not n.flags & {"DRAIN", "POWERING_DOWN", "POWER_DOWN"} and not self.on(n.name)
            ]
            free.sort(key=lambda n: bool(n.flags & {"POWERED_DOWN", "POWERING_UP", "POWER_UP"}))
            if len(free) >= r.node_count:
                chosen = free[: r.node_count]
                cold = any(n.flags & {"POWERED_DOWN", "POWERING_UP", "POWER_UP"} for n in chosen)
                job.config_left = 20.0 if cold else 0.0
                job.record = replace(
                    r, states=frozenset({"RUNNING", "CONFIGURING"} if cold else {"RUNNING"}),
                    nodes=tuple(n.name for n in chosen), start_time=int(now), reason="None",
                )  # fmt: skip

    def _run(self, job: SimJob) -> None:
        r = job.record
        if "RUNNING" not in r.states:
            return
        nodes = [self.node[name] for name in r.nodes]
        if "CONFIGURING" in r.states:
            if not any(n.flags & {"POWERING_UP", "POWERED_DOWN", "POWER_UP"} for n in nodes):
                job.config_left -= 1
                if job.config_left <= 0:
                    job.record = replace(r, states=frozenset({"RUNNING"}))
            return
        if all(self.world.cloud.serving(n.name) for n in nodes):
            job.done += 1
        if job.done >= job.work:
            job.record = replace(r, states=frozenset({"COMPLETED"}), end_time=int(self.world.clock()))
