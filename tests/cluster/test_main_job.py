"""The main job on a real Slurm: reclaimed, preempted, lost, cut off. It ends as if nobody had touched it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.store.io_types import Kind
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed
from tests.fixtures.addresses import host_address
from tests.fixtures.seaweedfs import seaweedfs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

MakeCluster = Callable[..., LocalCluster]
STEPS = 400
STEP_TIME = 0.4
"""Seconds, until all has happened that a test has for it."""


def settings(**wanted: object) -> dict[str, object]:
    made = default_settings(**{"nodes": 3, **wanted})  # type: ignore[arg-type]
    made["checkpoints"] = {"interval": "2s"}
    return made


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training, never touched."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), STEPS)


def live_machines(cluster: LocalCluster) -> list[str]:
    return [i.node for i in cluster.cloud().instances() if i.state is not InstanceState.GONE and i.billed]


def processes_of(cluster: LocalCluster, job: str) -> list[int]:
    """Pids of everything of that cluster's job, wrappers and programs alike. Other clusters here have jobs of the same number."""
    mine = {f"SLURM_JOB_ID={job}".encode(), b"SLURM_STEP_ID=0", f"SLURM_CONF={cluster.slurm_conf}".encode()}
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mine <= set(environment):
                found.append(int(folder.name))
    return found


def test_reclaimed_lost_and_preempted(make_cluster: MakeCluster, reference: Path, tmp_path: Path) -> None:
    """On S3: with notice, without notice, and by a partition of higher priority. Bit-identical, and no machine is left."""
    with host_address("10.76.0.1") as address, seaweedfs(tmp_path / "s3", ip=address) as server:
        plan = settings(grace_time=30, suspend_time=15)
        plan["checkpoints"] = {"interval": "2s", "uri": f"{server.uri}/runs", "endpoint_url": server.endpoint_url}
        keys = {k: v for k, v in server.environment.items() if k != "AWS_ENDPOINT_URL"}
        os.environ.update(keys)
        try:
            cluster = make_cluster(settings=plan)
            job = Training(cluster, STEPS, STEP_TIME, tmp_path / "out").submit()
            job.until_step(10)
            cluster.cloud().reclaim(job.node())
            job.until_epoch(2)
            cluster.cloud().vanish(job.node())
            job.until_epoch(3)
            cluster.submit("srun sleep 2", "--partition=urgent", f"--nodelist={job.node()}")
            job.until_epoch(4)
            job.until_finished()
            entries = job.entries()
        finally:
            for key in keys:
                os.environ.pop(key, None)
    assert_same(tmp_path / "out", reference)
    assert_no_commit_lost(entries)
    ended = [e.body["reason"] for e in entries if e.kind is Kind.INTERRUPTED]
    assert len(ended) == 2, f"reclaim and preemption are interruptions, the lost node says nothing: {ended}"
    cluster.wait_for(lambda: not live_machines(cluster), 240, "all machines ended after SuspendTime")
    cluster.wait_for(
        lambda: all(n.has("POWERED_DOWN") and not n.has("DOWN", "DRAIN") for n in cluster.client().nodes()),
        180,
        "all nodes power-saving idle",
    )


def test_cut_off_node_is_fenced(make_cluster: MakeCluster, reference: Path, tmp_path: Path) -> None:
    """A node off the network trains on, on a store that it still reaches: its commits are refused and its program is stopped."""
    plan = settings()
    plan["manager"] = {"silent_prepare": "2s", "silent_down": "6s"}
    cluster = make_cluster(settings=plan)
    cluster.cloud().set_linger(600)
    job = Training(cluster, STEPS, STEP_TIME, tmp_path / "out").submit()
    job.until_step(20)
    lost = job.node()
    old = processes_of(cluster, job.job)
    assert old
    cluster.cloud().cut(lost)
    job.until_epoch(2)
    assert job.node() != lost
    machine = next(i for i in cluster.cloud().instances() if i.node == lost and i.state is not InstanceState.GONE)
    cluster.wait_for(
        lambda: not set(old) & set(processes_of(cluster, job.job)), 180, "the old attempt's processes to end"
    )
    still = next(i for i in cluster.cloud().instances() if i.instance_id == machine.instance_id)
    assert still.state is not InstanceState.GONE, "the machine must outlive them: it was the log that stopped them"
    job.until_finished()
    assert_same(tmp_path / "out", reference)
    entries = job.entries()
    assert_no_commit_lost(entries)
    assert "fenced: a newer attempt (epoch 2) holds this run" in job.output
    assert {e.epoch for e in entries} == {1, 2}


def test_short_notice(make_cluster: MakeCluster, reference: Path, tmp_path: Path) -> None:
    """30 s of notice and a replacement that takes 5 s to boot."""
    cluster = make_cluster(settings=settings(notice=30, boot_time=5))
    job = Training(cluster, STEPS, STEP_TIME, tmp_path / "out").submit()
    job.until_step(20)
    cluster.cloud().reclaim(job.node())
    job.until_epoch(2)
    job.until_finished()
    assert_same(tmp_path / "out", reference)
    assert len(job.attempts()) == 2
