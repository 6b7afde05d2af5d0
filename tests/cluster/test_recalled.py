"""slurmctld is killed, and recalls its jobs and nodes as they were when it last saved them; and a cluster whose SuspendTime is short."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.slurm.records import Node
from tests.cluster.conftest import MakeCluster
from tests.cluster.counting import Handle, Stage
from tests.cluster.test_kills import find

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SAVED = ("job_state", "node_state")
BOUND = 110
"""Seconds. By itself Slurm takes ResumeTimeout or SuspendTime, or never does it."""


def settings(nodes: int, suspend_time: float) -> dict[str, Any]:
    plan = default_settings(nodes, gpus=0, suspend_time=suspend_time, resume_timeout=600)
    plan["checkpoints"] = {"interval": "2s"}
    return plan


def nodes(stage: Stage) -> dict[str, Node]:
    return {node.name: node for node in stage.client.nodes()}


def machines(stage: Stage) -> set[str]:
    return {i.node for i in stage.cluster.cloud().instances() if i.state is not InstanceState.GONE}


def save(stage: Stage, job: Handle, into: Path) -> None:
    """Have slurmctld save, and keep what it has saved."""
    files = {name: stage.cluster.root / "slurmctld" / name for name in SAVED}
    before = {name: path.stat().st_mtime_ns if path.exists() else 0 for name, path in files.items()}
    stage.cluster.run("scontrol", "update", f"JobId={job.id}", "Comment=saved")
    stage.cluster.run("scontrol", "update", "nodename=spot-1", "comment=saved")
    stage.wait(
        lambda: all(path.exists() and path.stat().st_mtime_ns != before[name] for name, path in files.items()),
        "slurmctld to save",
    )
    for path in files.values():
        shutil.copy(path, into)


def recall(stage: Stage, kept: Path) -> None:
    """Kill slurmctld, and let it find what was kept."""
    stage.cluster.kill_slurmctld()
    for name in SAVED:
        for old in (stage.cluster.root / "slurmctld").glob(f"{name}*"):
            old.unlink()
        shutil.copy(kept / name, stage.cluster.root / "slurmctld")
    stage.cluster.start_slurmctld()


def test_what_slurmctld_recalls_wrongly_is_set_right(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Two jobs run when it is killed; it recalls them as held. It starts one again where that runs, and one where that does not. A third
    job waits for a node that is up, and which it recalls as off."""
    stage = Stage(make_cluster(settings=settings(4, suspend_time=600)), "22.05")
    stage.boot(["spot-1", "spot-2", "spot-4"])
    stage.client.update_nodes(["spot-2"], state="drain", reason="not yet")
    same = stage.submit(stage.wrapped(), "--hold", "--nodelist=spot-1")
    moves = stage.submit(stage.wrapped(), "--hold", "--exclude=spot-[1,3]")
    save(stage, moves, tmp_path)
    stage.boot(["spot-3"])
    for job in (same, moves):
        stage.client.release(job.id)
    for job in (same, moves):
        job.until_committed(1)
    assert (same.now.nodes, moves.now.nodes) == (("spot-1",), ("spot-4",))

    recall(stage, tmp_path)
    stage.client.update_nodes(["spot-2"], state="resume")
    for job in (same, moves):
        stage.client.release(job.id)
    asked = stage.submit(stage.wrapped(), "--nodelist=spot-3")
    same.until_back(timeout=BOUND)
    moves.until_back(timeout=BOUND)
    asked.until_committed(1, timeout=BOUND)
    assert (same.now.nodes, moves.now.nodes) == (("spot-1",), ("spot-2",))
    stage.wait(
        lambda: not [n for n in nodes(stage).values() if n.has("DOWN", "DRAIN", "POWERING_UP")],
        "all nodes to be usable",
    )
    assert machines(stage) == {n.name for n in nodes(stage).values() if not n.has("POWERED_DOWN")}
    for job in (same, moves, asked):
        job.finish()


def test_a_prepared_node_outlasts_a_short_suspend_time(make_cluster: MakeCluster) -> None:
    """Else it is powered down while its job is not back yet, and another one is prepared, and so on."""
    stage = Stage(make_cluster(settings=settings(3, suspend_time=8)), "22.05")
    stage.boot(["spot-1"])
    job = stage.counting()
    wrapper = find(stage.cluster, job.id, "wrapper")
    assert wrapper is not None
    os.kill(wrapper, signal.SIGSTOP)
    try:
        stage.cluster.cloud().reclaim("spot-1", 90)
        stage.wait(lambda: [n for n in nodes(stage).values() if n.up and n.has("IDLE")], "the replacement")
        (prepared,) = [n for n in nodes(stage).values() if n.up and n.has("IDLE")]
        stage.wait(lambda: nodes(stage)[prepared.name].last_busy > prepared.last_busy + 16, "twice its SuspendTime", 60)
    finally:
        os.kill(wrapper, signal.SIGCONT)
    job.until_back(timeout=BOUND)
    assert job.now.nodes == (prepared.name,)
    assert len(stage.cluster.cloud().instances()) == 2, "its machine, and the one that replaced it"
    job.finish()
