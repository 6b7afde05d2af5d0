"""The file system of the checkpoints is not there on a node: it went away beneath a job, or was never mounted, and its bare mount point is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.store.io_types import Kind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.render import Programs
from tests.cluster.counting import Handle, Stage
from tests.cluster.training import assert_no_commit_lost

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def on(stage: Stage, node: str, *command: str | Path) -> None:
    """Run it among the mounts of that node, and its processes: /proc there knows no others."""
    pid = stage.cluster.cloud().find(node).process.pid
    subprocess.run(
        ["nsenter", f"--target={pid}", "--mount", "--pid", *map(str, command)], check=True, capture_output=True
    )


def commits(job: Handle) -> int:
    return sum(entry.kind is Kind.COMMIT for entry in job.entries())


def test_a_node_without_the_stores_file_system(make_cluster: Callable[..., LocalCluster]) -> None:
    plan = default_settings(2, gpus=0)
    plan["checkpoints"] = {"interval": "2s"}
    cluster = make_cluster(settings=plan)
    folder = cluster.root / "checkpoints"
    cluster.wait_for((cluster.root / "state" / "store.json").exists, 60, "the manager to know the store")
    stage = Stage(cluster, "22.05")
    stage.boot(["spot-1", "spot-2"])
    running = stage.counting("--nodelist=spot-1")
    for node in ("spot-1", "spot-2"):
        on(stage, node, "mount", "-t", "tmpfs", "tmpfs", folder)
    # Somebody has used the mount point, so that it looks like a store; no cluster's settings are asked for that.
    on(stage, "spot-2", Programs.beside_python().spotburst, "store", "check", f"file://{folder}")
    first = stage.submit(stage.wrapped(), "--nodelist=spot-2")
    first.until(lambda: "another folder than the cluster's" in first.output, "to be refused")
    running.until(lambda: "the store can't be reached" in running.output, "to miss its store")
    before = commits(running)
    assert running.now.running and not first.entries()
    for node in ("spot-1", "spot-2"):
        # Whoever looks into it just now may go on: it is out of the way at once, and not in use.
        on(stage, node, "umount", "--lazy", folder)
    running.until(lambda: commits(running) > before, "to commit again")
    first.until_committed(1)
    for job in (running, first):
        job.finish()
        assert_no_commit_lost(job.entries())
        assert len(job.starts) == 1
