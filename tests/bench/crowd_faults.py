"""The faults of ``bench_crowd``: what the cloud, the network, the daemons, administrators and users do to many jobs at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from job_wrapper.errors import StoreError
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.cloud.local.cloud import LocalCloud
from slurm_plugin.cloud.provider import Instance, InstanceState, RefusalKind
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.cluster import LocalCluster
from tests.bench.faults import Due
from tests.cluster.counting import Handle, Stage

LOOKED_AT = "looked at"
"""Why an administrator drains a node."""


@dataclass
class Crowd:
    """The jobs under fire. One thread uses it."""

    stage: Stage
    jobs: list[Handle]
    chance: random.Random
    seen: dict[str, dict[int, Entry]] = field(default_factory=lambda: defaultdict(dict))
    """By job, every entry that its log has ever shown, by number."""
    due: Due = field(default_factory=Due)

    @property
    def cluster(self) -> LocalCluster:
        return self.stage.cluster

    @property
    def clouds(self) -> list[str]:
        """The providers' names."""
        return list(self.cluster.config.providers)

    def undo_all(self) -> None:
        """Of the daemons first: the other acts need them."""
        for what in sorted(self.due.acts, key=lambda name: name not in ("slurmctld", "manager")):
            self.due.undo(what)

    def look(self) -> None:
        """Undo what is due; read what the logs have got."""
        for what in self.due.overdue():
            if what in ("slurmctld", "manager", "store") or "slurmctld" not in self.due.acts:
                self.due.undo(what)
        for job in self.jobs:
            with contextlib.suppress(StoreError):
                self.seen[job.id].update({entry.seq: entry for entry in job.entries()})

    def rest(self, seconds: float) -> None:
        """Look on for that long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(0.2)

    def until_all_commit(self, patience: float, since: float = 0.0) -> None:
        """Until each job has committed after that moment (Unix seconds). Raises ``TimeoutError`` that names those that have not."""
        until = time.monotonic() + patience
        while True:
            self.look()
            self.mend()
            late = [
                job
                for job in self.jobs
                if not any(e.kind is Kind.COMMIT and e.time > since for e in self.seen[job.id].values())
            ]
            if not late:
                return
            if time.monotonic() > until:
                said = "\n".join(job.summary() for job in late)
                raise TimeoutError(f"stuck for {patience:g} s:\n{said}\n{self.cluster.diagnostics()}")
            time.sleep(0.5)

    def mend(self) -> None:
        """Release and undrain once more what an undoing has missed: it was too early, or slurmctld, killed seconds later, has forgotten it."""
        if self.due.acts:
            return
        for node in self.stage.client.nodes():
            if node.has("DRAIN") and node.reason.startswith(LOOKED_AT):
                self.cluster.run("scontrol", "update", f"nodename={node.name}", "state=undrain", check=False)
        for job in self.stage.jobs():
            if job.name_id in {known.id for known in self.jobs} and job.has("PENDING") and job.priority == 0:
                self.cluster.run("spotburst", "resume", job.name_id, check=False)

    def machines(self) -> list[tuple[LocalCloud, Instance]]:
        """Those that run, whatever their node is doing, and whether or not their cloud answers the manager."""
        return [
            (cloud, Instance(m.instance_id, "", m.spec["node"], "", InstanceState.RUNNING, 0.0, ""))
            for cloud in (self.cluster.cloud(name) for name in self.clouds)
            for m in cloud.yard.machines()
            if not m.gone and m.spec["provider"] == cloud.name
        ]

    def machine(self) -> tuple[LocalCloud, Instance]:
        """One of them. Raises ``LocalCloudError`` where none runs."""
        if not (found := self.machines()):
            raise LocalCloudError("no machine runs")
        return self.chance.choice(found)

    def asked(self, *command: str) -> str:
        """A command of a person, who reads what comes back; slurmctld is there for it."""
        self.due.undo("slurmctld")
        return " ".join(self.cluster.run(*command, check=False).split())[:120]


def notice(here: Crowd) -> str:
    """The cloud takes up to three machines back at the same moment."""
    found = here.machines()
    chosen = here.chance.sample(found, min(len(found), here.chance.choice((1, 1, 3))))
    seconds = here.chance.choice((3, 15, 30))
    for cloud, instance in chosen:
        cloud.reclaim(instance.instance_id, seconds)
    return f"notice of {seconds} s to {', '.join(i.node for _, i in chosen)}"


def withdrawn(here: Crowd) -> str:
    """A notice, and some seconds later the cloud's word that the machine stays."""
    cloud, instance = here.machine()
    cloud.reclaim(instance.instance_id, 60)
    seconds = 5 * here.chance.random()

    def withdraw() -> None:
        with contextlib.suppress(LocalCloudError):
            cloud.withdraw(instance.instance_id)

    here.due.later(f"notice to {instance.instance_id}", seconds, withdraw)
    return f"notice to {instance.node}, withdrawn after {seconds:.1f} s"


def loss(here: Crowd) -> str:
    """A machine is gone without a word."""
    cloud, instance = here.machine()
    cloud.vanish(instance.instance_id)
    return f"{instance.node} lost without notice"


def cut(here: Crowd) -> str:
    """A node is off the network, for ever or for a while."""
    cloud, instance = here.machine()
    cloud.cut(instance.instance_id)
    seconds = here.chance.choice((3, 15, 600))

    def heal() -> None:
        with contextlib.suppress(LocalCloudError):
            cloud.heal(instance.instance_id)

    if seconds < 600:
        here.due.later(f"cut {instance.instance_id}", seconds, heal)
    return f"{instance.node} cut off the network for {seconds} s"


def preemption(here: Crowd) -> str:
    """Jobs of higher priority take one to three nodes, whatever these are doing."""
    nodes = [n.name for n in here.stage.client.nodes()] if "slurmctld" not in here.due.acts else []
    running = [i.node for _, i in here.machines()]
    chosen = here.chance.sample(sorted({*running, *nodes[:4]}), here.chance.choice((1, 1, 3)))
    seconds = here.chance.choice((1, 1, 15))
    for node in chosen:
        here.asked(
            "sbatch",
            "--partition=urgent",
            f"--nodelist={node}",
            "--job-name=urgent",
            "--output=/dev/null",
            f"--wrap=sleep {seconds}",
        )
    return f"preempted for {seconds} s on {', '.join(chosen)}"


def manager(here: Crowd) -> str:
    """The manager is killed, and started again later."""
    seconds = 6 * here.chance.random()
    here.due.manager_away(here.cluster, seconds)
    return f"manager killed, away for {seconds:.1f} s"


def slurmctld(here: Crowd) -> str:
    """slurmctld ends, in order or not, and is started again later."""
    number, seconds = here.chance.choice((signal.SIGTERM, signal.SIGKILL)), 4 * here.chance.random()
    here.due.slurmctld_away(here.cluster, number, seconds)
    return f"slurmctld ended by {number.name}, away for {seconds:.1f} s"


def store(here: Crowd) -> str:
    """Whatever is asked of the store fails: its folder is not where it was."""
    seconds = 1 + 7 * here.chance.random()
    here.due.store_away(here.cluster.root / "checkpoints", seconds)
    return f"store fails for {seconds:.1f} s"


def shortage(here: Crowd) -> str:
    """The next launches are refused for want of capacity."""
    times = here.chance.choice((1, 2, 3))
    name = here.chance.choice(here.clouds)
    here.cluster.cloud(name).refuse(RefusalKind.NO_CAPACITY, times=times)
    return f"the next {times} launches at {name} are refused"


def api(here: Crowd) -> str:
    """The clouds' APIs do not answer."""
    here.due.undo("api")
    clouds = [here.cluster.cloud(name) for name in here.clouds]
    for cloud in clouds:
        cloud.set_reachable(False)
    seconds = 1 + 11 * here.chance.random()
    here.due.later("api", seconds, lambda: [cloud.set_reachable(True) for cloud in clouds])
    return f"the clouds do not answer for {seconds:.1f} s"


def slurmd(here: Crowd) -> str:
    """``kill -9`` of a node's slurmd; its steps go on."""
    cloud, instance = here.machine()
    process = cloud.find(instance.instance_id).process
    for pid in _below(process.pid) if process is not None else ():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmd":
                os.kill(pid, signal.SIGKILL)
                return f"slurmd of {instance.node} killed"
    return f"{instance.node} has no slurmd"


def _below(pid: int) -> list[int]:
    """All processes that descend from that one."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found


def requeue(here: Crowd) -> str:
    """An administrator's ``scontrol requeue``."""
    job = here.chance.choice(here.jobs)
    return f"scontrol requeue {job.id}: {here.asked('scontrol', 'requeue', job.id) or 'done'}"


def hold(here: Crowd) -> str:
    """``scontrol requeuehold``, and release some seconds later."""
    job = here.chance.choice(here.jobs)
    seconds = 10 * here.chance.random()
    said = here.asked("scontrol", "requeuehold", job.id)
    here.due.later(f"hold {job.id}", seconds, lambda: here.cluster.run("scontrol", "release", job.id, check=False))
    return f"scontrol requeuehold {job.id} for {seconds:.1f} s: {said or 'done'}"


def suspend(here: Crowd) -> str:
    """``spotburst suspend``, and ``resume`` some seconds later; the checkpoint before it may take longer than that."""
    job = here.chance.choice(here.jobs)
    seconds = 10 * here.chance.random()
    said = here.asked("spotburst", "suspend", "--no-wait", job.id)
    here.due.later(f"suspend {job.id}", seconds, lambda: here.cluster.run("spotburst", "resume", job.id, check=False))
    return f"spotburst suspend {job.id} for {seconds:.1f} s: {said}"


def drain(here: Crowd) -> str:
    """An administrator drains a node, and some seconds later gives it back."""
    _, instance = here.machine()
    node = f"nodename={instance.node}"
    seconds = 15 * here.chance.random()
    said = here.asked("scontrol", "update", node, "state=drain", f"reason={LOOKED_AT}")

    def undrain() -> None:
        # Where it was set down or powered down meanwhile, spotburst has taken the drain as its own or Slurm has ended it.
        here.cluster.run("scontrol", "update", node, "state=undrain", check=False)

    here.due.later(f"drain {instance.node}", seconds, undrain)
    return f"{instance.node} drained by hand for {seconds:.1f} s: {said or 'done'}"


def power_down(here: Crowd) -> str:
    """An administrator's ``power_down_force``."""
    _, instance = here.machine()
    said = here.asked("scontrol", "update", f"nodename={instance.node}", "state=power_down_force")
    return f"power_down_force of {instance.node}: {said or 'done'}"


def wrapper(here: Crowd) -> str:
    """``kill -9`` of a wrapper."""
    mine = f"SLURM_CONF={here.cluster.slurm_conf}".encode()
    found: list[tuple[int, str]] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if b"run" in command and any(c.endswith(b"/spotburst") for c in command[:3]):
                    environment = (folder / "environ").read_bytes().split(b"\0")
                    job = next((e for e in environment if e.startswith(b"SLURM_JOB_ID=")), b"?").decode()
                    if mine in environment:
                        found.append((int(folder.name), job))
    if not found:
        return "no wrapper runs"
    pid, job = here.chance.choice(sorted(found))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"a wrapper killed: {job}"


FAULTS: dict[str, Callable[[Crowd], str]] = {
    f.__name__: f
    for f in (notice, withdrawn, loss, cut, preemption, manager, slurmctld, store, shortage, api, slurmd, requeue, hold, suspend, drain, power_down, wrapper)
}  # fmt: skip
