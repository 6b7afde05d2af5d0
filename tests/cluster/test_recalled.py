"""slurmctld is killed, and recalls its jobs and nodes as they were when it last saved them; and a cluster whose SuspendTime is short."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.store.io_types import Kind
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.ledger import Ledger
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.slurm.records import Node
from tests.cluster.conftest import MakeCluster
from tests.cluster.counting import Handle, Stage
from tests.cluster.saved import STATE, saved
from tests.cluster.test_kills import find

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

BOUND = 300
"""Seconds. By itself Slurm takes ResumeTimeout or SuspendTime, or never does it."""


def settings(nodes: int, suspend_time: float) -> dict[str, Any]:
    plan = default_settings(nodes, gpus=0, suspend_time=suspend_time, resume_timeout=600)
    plan["checkpoints"] = {"interval": "2s"}
    return plan


def nodes(stage: Stage) -> dict[str, Node]:
    return {node.name: node for node in stage.client.nodes()}


def with_a_slow_node(plan: dict[str, Any]) -> dict[str, Any]:
    """And one node ``slow-1`` that takes a while to boot."""
    spot, first = plan["nodesets"][0], plan["partitions"][0]
    plan["providers"]["slow"] = {**plan["providers"]["local"], "boot_time": 45}
    offerings = [{**offering, "provider": "slow"} for offering in spot["offerings"]]
    plan["nodesets"].append({**spot, "name": "slow", "nodes": "slow-1", "offerings": offerings})
    first["nodesets"] = ["spot", "slow"]
    return plan


def machines(stage: Stage) -> set[str]:
    clouds = [stage.cluster.cloud(name) for name in stage.cluster.config.providers]
    return {i.node for cloud in clouds for i in cloud.instances() if i.state is not InstanceState.GONE}


def seen(stage: Stage) -> set[str]:
    """Nodes that the manager knows to have registered."""
    ledger = Ledger.open_readonly(stage.cluster.config.state_dir / "ledger.db")
    try:
        return {intent.node for intent in ledger.intents() if intent.registered}
    finally:
        ledger.close()


def remembered(stage: Stage) -> dict[int, int]:
    """Restart counts of the jobs that the manager has seen running."""
    ledger = Ledger.open_readonly(stage.cluster.config.state_dir / "ledger.db")
    try:
        return {job_id: job.restart_count for job_id, job in ledger.seen_jobs().items()}
    finally:
        ledger.close()


def save(stage: Stage, job: Handle, into: Path) -> None:
    """Have slurmctld save, and keep what it has saved: not what it was at just then, which may be older than the job."""
    kept: dict[str, bytes] = {}

    def is_saved() -> bool:
        kept.update(saved(stage.cluster))
        return bool(kept) and all(b"to-be-recalled" in data for data in kept.values())

    stage.cluster.run("scontrol", "update", f"JobId={job.id}", "Comment=to-be-recalled")
    stage.cluster.run("scontrol", "update", "nodename=spot-1", "comment=to-be-recalled")
    stage.wait(is_saved, "slurmctld to save")
    for name, data in kept.items():
        (into / name).write_bytes(data)


def recall(stage: Stage, kept: Path) -> None:
    """Kill slurmctld, and let it find what was kept."""
    stage.cluster.kill_slurmctld()
    for name in STATE:
        for old in (stage.cluster.root / "slurmctld").glob(f"{name}*"):
            old.unlink()
        shutil.copy(kept / name, stage.cluster.root / "slurmctld")
    stage.cluster.start_slurmctld()


def test_what_slurmctld_recalls_wrongly_is_set_right(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Two jobs run when it is killed; it recalls them as held. It starts one again where that runs, and one where that does not. A third
    job waits for a node that is up, and which it recalls as off. A fourth one's node has registered while no manager ran, and is recalled
    as booting."""
    stage = Stage(make_cluster(settings=with_a_slow_node(settings(5, suspend_time=600))), "22.05")
    stage.boot(["spot-1", "spot-2", "spot-4", "spot-5"])
    stage.client.update_nodes(["spot-2", "spot-5"], state="drain", reason="not yet")
    same = stage.submit(stage.wrapped(), "--hold", "--nodelist=spot-1")
    moves = stage.submit(stage.wrapped(), "--hold", "--exclude=spot-[1,3,5],slow-1")
    stage.cluster.kill_manager()
    unseen = stage.submit(stage.wrapped(), "--exclude=spot-[1-4]")
    stage.wait(lambda: nodes(stage)["slow-1"].has("POWERING_UP"), "the node to be powered up")
    save(stage, moves, tmp_path)
    stage.cluster.start_manager()
    stage.boot(["spot-3"])
    stage.wait(lambda: "slow-1" in machines(stage) and "spot-3" in seen(stage), "the manager to see what is there")
    stage.cluster.kill_manager()
    for job in (same, moves):
        stage.client.release(job.id)
    for job in (same, moves):
        job.until_counting(1)
    assert (same.now.nodes, moves.now.nodes) == (("spot-1",), ("spot-4",))
    stage.wait(lambda: nodes(stage)["slow-1"].up, "the node to register")
    assert seen(stage) == {f"spot-{n}" for n in range(1, 6)}

    recall(stage, tmp_path)
    stage.cluster.start_manager()
    stage.client.update_nodes(["spot-2", "spot-5"], state="resume")
    for job in (same, moves):
        stage.client.release(job.id)
    asked = stage.submit(stage.wrapped(), "--nodelist=spot-3")
    same.until_back(timeout=BOUND)
    moves.until_back(timeout=BOUND)
    asked.until_committed(1, timeout=BOUND)
    unseen.until_committed(1, timeout=BOUND)
    jobs = (same, moves, unseen)
    assert tuple(job.now.nodes for job in jobs) == (("spot-1",), ("spot-2",), ("spot-5",))
    assert unseen.now.restart_count == 1
    stage.wait(
        lambda: not [n for n in nodes(stage).values() if n.has("DOWN", "DRAIN", "POWERING_UP", "POWERING_DOWN")],
        "all nodes to be usable",
    )
    assert machines(stage) == {n.name for n in nodes(stage).values() if not n.has("POWERED_DOWN")}
    for job in (*jobs, asked):
        job.finish()


def test_what_slurmctld_has_forgotten_of_requeues_is_made_up_for(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """One job has ended its attempt for a requeue, and another for ``suspend``, of which it knows nothing: they run, by its records. Of a third
    it knows the requeue, and not that it has begun again."""
    stage = Stage(make_cluster(settings=settings(6, suspend_time=600)), "22.05")
    stage.boot(["spot-1", "spot-2", "spot-3"])
    again = stage.counting("--nodelist=spot-3")
    stage.cluster.run("scontrol", "requeue", again.id)
    stage.wait(lambda: again.now.has("PENDING") and not again.now.has("COMPLETING"), "the requeue")
    stage.cluster.kill_manager()
    requeued, suspended = stage.counting("--nodelist=spot-1"), stage.counting("--nodelist=spot-2")
    save(stage, requeued, tmp_path)
    assert again.now.has("PENDING")
    stage.cluster.run("scontrol", "requeue", requeued.id)
    stage.cluster.run("spotburst", "suspend", suspended.id)
    stage.client.start_now(again.id)
    again.until_committed(2)
    stage.wait(lambda: requeued.interrupted and suspended.kinds(Kind.SUSPENDED), "the attempts to end")

    stage.cluster.start_manager()
    stage.wait(lambda: remembered(stage).get(int(again.id)) == 1, "the manager to see it run")
    recall(stage, tmp_path)
    stage.wait(lambda: again.now.has("PENDING"), "the start to be forgotten")
    assert requeued.now.running and suspended.now.running
    again.until_committed(3, timeout=BOUND)
    suspended.until(lambda: suspended.now.has("PENDING") and suspended.now.priority == 0, "to be held", timeout=240)
    requeued.until_back(2, timeout=240)
    stage.cluster.run("spotburst", "resume", suspended.id)
    suspended.until_back(2)
    for job in (again, requeued, suspended):
        job.finish()


def test_a_prepared_node_outlasts_a_short_suspend_time(make_cluster: MakeCluster) -> None:
    """Else it is powered down while its job is not back yet, and another one is prepared, and so on."""
    suspend_time = 30  # of which the manager, busy or not, must not miss more than two thirds
    stage = Stage(make_cluster(settings=settings(3, suspend_time=suspend_time)), "22.05")
    stage.boot(["spot-1"])
    job = stage.counting()
    (node,), made = job.now.nodes, len(stage.cluster.cloud().instances())
    wrapper = find(stage.cluster, job.id, "wrapper")
    assert wrapper is not None
    os.kill(wrapper, signal.SIGSTOP)
    try:
        stage.cluster.cloud().reclaim(node, 240)
        stage.wait(lambda: [n for n in nodes(stage).values() if n.up and n.has("IDLE")], "the replacement")
        (prepared,) = [n for n in nodes(stage).values() if n.up and n.has("IDLE")]
        enough = prepared.last_busy + 1.2 * suspend_time
        stage.wait(lambda: nodes(stage)[prepared.name].last_busy > enough, "more than its SuspendTime")
    finally:
        os.kill(wrapper, signal.SIGCONT)
    job.until_back(timeout=BOUND)
    assert job.now.nodes == (prepared.name,)
    assert len(stage.cluster.cloud().instances()) == made + 1, "its machine, and the one that replaced it"
    job.finish()
