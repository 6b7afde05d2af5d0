"""One pass of the manager over 5,000 nodes and 10,000 jobs: what it costs this process, Slurm's answers read from their JSON text.

python -m tests.bench.bench_manager [--profile]
"""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_plugin.cloud.provider import Instance, InstanceState, Launched, LaunchRequest, Refused
from slurm_plugin.config import Config
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.apply import Applier
from slurm_plugin.manager.booting import LOOK_EVERY, Booting
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.launch import Launcher
from slurm_plugin.manager.loop import in_transition, spare_collections
from slurm_plugin.manager.observe import Observer
from slurm_plugin.manager.reach import Reach
from slurm_plugin.manager.say import Once
from slurm_plugin.reconcile import Policy, decide
from slurm_plugin.slurm import parse
from slurm_plugin.slurm.records import Job, Node, Partition
from tests.bench.table import Line

NODES = 5000
JOBS = 10_000
BUDGET = 1.0
"""Seconds of processor time."""


class Slurm:
    """Answers as the commands do, from text made once."""

    def __init__(self, names: Sequence[str], now: float) -> None:
        running = [
            {
                **_JOB,
                "job_id": i + 1,
                "job_state": "RUNNING",
                "nodes": name,
                "start_time": int(now) - 5000,
                "end_time": int(now) + 90_000,
            }
            for i, name in enumerate(names)
        ]
        waiting = [
            {**_JOB, "job_id": i + 1, "job_state": "PENDING", "state_reason": "Resources", "nodes": ""}
            for i in range(len(names), JOBS)
        ]
        self.job_text = json.dumps({"meta": {}, "errors": [], "jobs": running + waiting})
        self.node_text = json.dumps(
            {"meta": {}, "errors": [], "nodes": [{**_NODE, "name": n, "address": n, "hostname": n} for n in names]}
        )

    def jobs(self) -> tuple[Job, ...]:
        return parse.parse_jobs(self.job_text, "squeue")

    def nodes(self) -> tuple[Node, ...]:
        return parse.parse_nodes(self.node_text, "sinfo")

    def partitions(self) -> tuple[Partition, ...]:
        return ()

    def update_nodes(self, names: Iterable[str], **_: object) -> None:
        raise AssertionError(f"nothing is to be done to {list(names)[:3]}")


_JOB: dict[str, Any] = {
    **dict.fromkeys(("account", "admin_comment", "array_task_string", "burst_buffer", "cluster_features", "command", "container"), ""),
    **dict.fromkeys(("accrue_time", "array_job_id", "association_id", "billable_tres", "cores_per_socket", "delay_boot"), 0),
    "batch_flag": True,
    "requeue": True,
    "partition": "spot",
    "user_name": "ann",
    "user_id": 1000,
    "node_count": 1,
    "priority": 4_294_901_000,
    "restart_cnt": 0,
    "submit_time": 1_790_000_000,
    "eligible_time": 1_790_000_000,
    "state_reason": "None",
    "tres_req_str": "cpu=8,mem=60G,node=1,billing=8,gres/gpu=1",
    "tres_per_node": "gres:gpu:1",
    "standard_output": "/home/ann/slurm-1.out",
    "current_working_directory": "/home/ann/work",
    "name": "train",
    "comment": "",
    "job_resources": {"nodes": "n", "allocated_cpus": 8, "allocated_hosts": 1, "allocated_nodes": {"0": {"memory": 0, "cpus": 8}}},
}  # fmt: skip
_NODE: dict[str, Any] = {
    "architecture": "x86_64",
    "boot_time": 1_790_000_000,
    "cpus": 8,
    "features": "spot,gpu",
    "active_features": "spot,gpu",
    "gres": "gpu:t4:1(S:0)",
    "operating_system": "Linux 6.1.0 #1 SMP",
    "partitions": ["spot"],
    "port": 6818,
    "reason": "",
    "real_memory": 60_000,
    "state": "allocated",
    "state_flags": ["CLOUD"],
    "tres": "cpu=8,mem=60000M,billing=8,gres/gpu=1",
}


class Cloud:
    """Five thousand machines that run."""

    name = "here"

    def __init__(self) -> None:
        self.machines: list[Instance] = []

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        raise AssertionError("nothing is to be launched")

    def terminate(self, instance_ids: Sequence[str]) -> None:
        raise AssertionError("nothing is to be ended")

    def instances(self) -> list[Instance]:
        return list(self.machines)


def settings(folder: Path) -> Config:
    """Five nodesets of a thousand nodes, each with six offerings chosen by availability."""
    offerings = [
        {"provider": "here", "instance_type": "gpu", "zone": zone, "market": market}
        for market in ("spot", "on-demand")
        for zone in "abc"
    ]
    nodesets = [
        {"name": f"set{i}", "nodes": f"n{i}-[1-{NODES // 5}]", "cpus": 8, "memory_mb": 1000, "offerings": offerings}
        for i in range(5)
    ]
    return Config.model_validate(
        {
            "cluster": "bench",
            "state_dir": str(folder),
            "checkpoints": {"uri": f"file://{folder}/store"},
            "providers": {"here": {"type": "local"}},
            "placement": {"policy": "most_available", "on_demand_after": {"failures": 3, "wait": "10m"}},
            "nodesets": nodesets,
            "partitions": [{"name": "spot", "nodesets": [n["name"] for n in nodesets]}],
        }
    )


class Site:
    """A manager in its steady state: every node up, every machine known."""

    def __init__(self, folder: Path) -> None:
        spare_collections()
        began = time.process_time()
        config = settings(folder)
        policy = Policy.of(config)
        self.start = time.process_time() - began
        names = list(policy.nodeset_of)
        now = time.time()
        cloud, once = Cloud(), Once()
        self.ledger = Ledger.open(folder / "ledger.db")
        offering = next(iter(policy.offerings))
        with self.ledger.batch():
            for name in names:
                intent = self.ledger.open_intent(name, policy.nodeset_of[name], "here", offering)
                self.ledger.launched(intent.launch_id, f"i-{name}")
                cloud.machines.append(
                    Instance(f"i-{name}", intent.launch_id, name, policy.nodeset_of[name], InstanceState.RUNNING, now, offering)
                )  # fmt: skip
        client: Any = Slurm(names, now)
        lanes = {"here": Lane(cloud)}
        booting = Booting(client, Reach(LOOK_EVERY), once)
        self.observer = Observer(policy, client, lanes, self.ledger, folder, once=once, booting=booting)
        launcher = Launcher(policy, lanes, self.ledger, lambda *_: {}, once)
        self.applier = Applier(client, self.ledger, launcher, once)

    def once(self) -> float:
        """One pass, as ``manager.loop`` makes it. Seconds of processor time, of all threads."""
        began = time.process_time()
        view = self.observer.look()
        actions = decide(view)
        self.applier.apply(actions, view)
        in_transition(view, actions)
        return time.process_time() - began

    def close(self) -> None:
        self.observer.close()
        self.ledger.close()


def lines() -> Iterator[Line]:
    """For the table."""
    with tempfile.TemporaryDirectory(prefix="bench-manager-") as folder:
        site = Site(Path(folder))
        site.once()
        value = statistics.median(site.once() for _ in range(5))
        site.close()
    yield Line(f"a pass over {NODES} nodes, {JOBS} jobs (processor time)", value, "budget", BUDGET, 1.0)
    yield Line(f"reading settings of {NODES} nodes (processor time)", site.start, "budget", BUDGET, 1.0)


def main() -> None:
    """Print the lines, or where the time of a pass goes."""
    if "--profile" not in sys.argv:
        for line in lines():
            print(line, flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="bench-manager-") as folder:
        site = Site(Path(folder))
        print(f"start {site.start:.2f} s; passes {', '.join(f'{site.once():.2f} s' for _ in range(3))}")
        profile = cProfile.Profile()
        profile.runcall(site.once)
        site.close()
    pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
