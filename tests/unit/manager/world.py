"""A Slurm and a cloud in memory, after SLURM_FACTS §1.3 and §2 (as run on 22.05.8) and the Provider protocol, with a clock of their own.

They implement ``SlurmClient`` and ``Provider``. ``Killed`` is raised at a chosen act, before or after it takes effect, as ``kill -9`` would.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_plugin.cloud.provider import Instance, InstanceState, Launched, LaunchRequest, RefusalKind, Refused
from slurm_plugin.errors import CloudUnavailable, SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm.records import Job, Node, Partition

RESUME_TIMEOUT = 90.0
SUSPEND_TIMEOUT = 10.0
SUSPEND_TIME = 200.0
SLURMD_TIMEOUT = 300.0
REQUEUE_DELAY = 121.0
KEEP_GONE = 120.0


class Killed(BaseException):
    """The manager was killed here."""


@dataclass
class Killer:
    """Counts acts; kills at the ``at``-th."""

    at: int = -1
    count: int = 0

    def act(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Machine:
    request: LaunchRequest
    instance_id: str
    born: float
    visible: float
    boots_in: float
    ending: float | None = None
    gone: float | None = None
    reclaim: float | None = None
    stopped: bool = False

    def alive(self) -> bool:
        return self.gone is None

    def state(self, now: float) -> InstanceState:
        if self.gone is not None:
            return InstanceState.GONE
        if self.ending is not None:
            return InstanceState.STOPPING
        if self.reclaim is not None:
            return InstanceState.RECLAIMING
        return InstanceState.RUNNING if now >= self.born + self.boots_in else InstanceState.PENDING


class World:
    """The outside: advance it with ``tick``."""

    def __init__(self, names: Sequence[str], state_dir: Path, seed: int = 0, idle_on_node_suspend: bool = True) -> None:
        self.clock = Clock()
        self.random = random.Random(seed)
        self.killer = Killer()
        self.state_dir = state_dir
        (state_dir / "requests").mkdir(parents=True, exist_ok=True)
        self.slurm = FakeSlurm(self, names, idle_on_node_suspend)
        self.cloud = FakeCloud(self)
        self.requests = 0

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.cloud.tick()
        self.slurm.tick()

    def request(self, kind: str, nodes: Iterable[str]) -> None:
        self.requests += 1
        path = self.state_dir / "requests" / f"{self.clock.now:.6f}-{self.requests}-{kind}.json"
        path.write_text(json.dumps({"kind": kind, "hostlist": ",".join(nodes), "time": self.clock.now}))


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
        self.refuse: set[str] = set()
        self.log: list[tuple[float, str, str]] = []

    # --- the protocol -------------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int, int]:
        return 22, 5, 8

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
            node.name, frozenset({base, "CLOUD", *node.flags}), node.reason, node.name, node.name, partitions=("spot",)
        )

    def partitions(self) -> tuple[Partition, ...]:
        self._answer()
        return (Partition("spot", tuple(self.node), preempt_mode="REQUEUE"),)

    def update_nodes(
        self, names: Iterable[str], *, state: str | None = None, reason: str | None = None, address: str | None = None
    ) -> None:
        names = list(names)
        self._answer()
        refused = []
        for name in names:
            self.world.killer.act()
            if name not in self.node or name in self.refuse:
                refused.append(name)
            else:
                self.log.append((self.world.clock(), name, str(state)))
                self._update(self.node[name], str(state), reason, refused)
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
        else:
            raise AssertionError(state)

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        self._answer()
        self.world.killer.act()
        self._requeue(self.job[int(job_id)])
        self.world.killer.act()

    def start_now(self, job_id: str) -> None:
        self._answer()
        self.world.killer.act()
        job = self.job[int(job_id)]
        if "PENDING" in job.record.states:
            job.begin = self.world.clock()
            job.record = replace(job.record, reason="None", eligible_time=int(job.begin))
        self.world.killer.act()

    def hold(self, job_id: str) -> None:
        raise AssertionError("the manager never holds a pending job")

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

    def set_comment(self, job_id: str, comment: str) -> None:
        self._answer()
        job = self.job.get(int(job_id))
        if job is not None:
            job.record = replace(job.record, comment=comment)

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
                node.idle_since, node.lost_since = now, None
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
            node.since = now
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


class FakeCloud:
    """One provider named ``sim``."""

    name = "sim"

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine: dict[str, Machine] = {}
        """By launch id."""
        self.unreachable = False
        self.lose_answers = 0
        self.refusals: list[RefusalKind] = []
        self.boots_in: Callable[[], float] = lambda: 5.0
        self.linger: Callable[[], float] = lambda: 3.0
        self.listing_lag: Callable[[], float] = lambda: 0.0
        self.calls = 0

    def serving(self, node: str) -> Machine | None:
        now = self.world.clock()
        return next(
            (
                m
                for m in self.machine.values()
                if m.request.node == node and m.alive() and m.ending is None and now >= m.born + m.boots_in
            ),
            None,
        )

    def living(self, node: str | None = None) -> list[Machine]:
        return [m for m in self.machine.values() if m.alive() and node in (None, m.request.node)]

    def tick(self) -> None:
        now = self.world.clock()
        for machine in self.machine.values():
            if machine.alive() and (
                (machine.ending is not None and now >= machine.ending)
                or (machine.reclaim is not None and now >= machine.reclaim)
            ):
                machine.gone = now

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        self.calls += 1
        self.world.killer.act()
        if self.unreachable:
            raise CloudUnavailable("sim does not answer")
        answers: list[Launched | Refused] = []
        for r in requests:
            known = self.machine.get(r.launch_id)
            if known is None and self.refusals:
                answers.append(Refused(r.launch_id, self.refusals.pop(0), "Code", "words"))
                continue
            if known is None:
                now = self.world.clock()
                known = Machine(r, f"i-{len(self.machine):04d}", now, now + self.listing_lag(), self.boots_in())
                self.machine[r.launch_id] = known
            answers.append(Launched(r.launch_id, known.instance_id))
        self.world.killer.act()
        if self.lose_answers:
            self.lose_answers -= 1
            raise CloudUnavailable("sim: the connection broke")
        return answers

    def terminate(self, instance_ids: Sequence[str]) -> None:
        self.world.killer.act()
        if self.unreachable:
            raise CloudUnavailable("sim does not answer")
        for machine in self.machine.values():
            if machine.instance_id in instance_ids and machine.alive() and machine.ending is None:
                machine.ending = self.world.clock() + self.linger()
            if machine.instance_id in instance_ids and machine.stopped:
                machine.stopped = False
        self.world.killer.act()

    def instances(self) -> list[Instance]:
        if self.unreachable:
            raise CloudUnavailable("sim does not answer")
        now = self.world.clock()
        return [
            Instance(
                m.instance_id, m.request.launch_id, m.request.node, m.request.nodeset, m.state(now), m.born, m.request.offering.id,
                deadline=m.reclaim, notice_id=f"{m.instance_id}-reclaim" if m.reclaim else None,
                billed=m.alive() or m.stopped,
            )
            for m in self.machine.values()
            if m.visible <= now and (m.gone is None or m.stopped or now - m.gone < KEEP_GONE)
        ]  # fmt: skip

    # --- what the cloud does by itself --------------------------------------------------------------------------------

    def vanish(self, machine: Machine, *, stopped: bool = False, forget: bool = False) -> None:
        machine.gone = self.world.clock() - (KEEP_GONE if forget else 0)
        machine.stopped = stopped
