"""Faults that only a real slurmctld shows: what it recalls after it was killed, and a notice that is taken back."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster.saved import saved
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STEPS = 300
STEP_TIME = 0.3


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """One for all tests: a job that finds its node up need not wait for Slurm's 30 s tick."""
    plan = default_settings(2)
    plan["checkpoints"] = {"interval": "1s"}
    yield make_module_cluster(settings=plan)


def program_of(out: Path) -> int | None:
    """Pid of the training that writes there. Other clusters of this host may have a job of the same id."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if command[1:2] and command[1].endswith("train.py") and str(out) in command:
                return int(folder.name)
    return None


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training, never touched."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), STEPS)


def test_a_notice_withdrawn_before_the_checkpoint_is_made(
    cluster: LocalCluster, reference: Path, tmp_path: Path
) -> None:
    """The job goes on where it is, in its first attempt; the replacement is released and the node back in the pool."""
    cloud = cluster.cloud()

    def machines() -> set[str]:
        return {i.node for i in cloud.instances() if i.state is not InstanceState.GONE}

    def drained() -> bool:
        return any(n.name == node and n.has("DRAIN") for n in cluster.client().nodes())

    job = Training(cluster, STEPS, STEP_TIME, tmp_path / "out").submit()
    job.until_step(20)
    node = job.node()
    program = program_of(tmp_path / "out")
    assert program is not None
    os.kill(program, signal.SIGSTOP)
    try:
        cloud.reclaim(node)
        cluster.wait_for(
            lambda: len(machines()) == 2 and drained() and "notice: aws reclaim" in job.output,
            60,
            "the drain, the replacement, and the wrapper to hear of it",
        )
        cloud.withdraw(node)
        cluster.wait_for(lambda: "the notice was withdrawn" in job.output, 40, "the wrapper to hear of it")
    finally:
        os.kill(program, signal.SIGCONT)
    cluster.wait_for(lambda: machines() == {node} and not drained(), 180, "the replacement's end and the node's return")
    job.until_finished()
    assert len(job.attempts()) == 1
    assert_same(tmp_path / "out", reference)


def test_slurmctld_recalls_a_job_on_a_node_that_is_off(cluster: LocalCluster, reference: Path, tmp_path: Path) -> None:
    """Killed before it saved the requeue, it shows the job running for ever where there is no machine any more."""
    job = Training(cluster, STEPS, STEP_TIME, tmp_path / "out").submit()
    job.until_step(20)
    node, before = job.node(), saved(cluster).get("job_state")
    cluster.run("scontrol", "update", f"JobId={job.job}", "Comment=saved")
    kept = cluster.wait_for(
        lambda: (now := saved(cluster).get("job_state")) != before and now, 90, "slurmctld to save the running job"
    )

    cluster.kill_manager()
    cluster.cloud().vanish(node)
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
    cluster.run("scontrol", "update", f"nodename={node}", "state=power_down_force")
    cluster.wait_for(
        lambda: any(n.name == node and n.has("POWERED_DOWN") for n in cluster.client().nodes()),
        90,
        "the node to be off",
    )
    cluster.kill_slurmctld()
    (cluster.root / "slurmctld" / "job_state").write_bytes(kept)
    cluster.start_slurmctld()
    (recalled,) = [j for j in cluster.client().jobs() if j.name_id == job.job]
    assert recalled.running
    assert recalled.nodes == (node,)

    cluster.start_manager()
    job.until_epoch(2)
    job.until_finished()
    assert_same(tmp_path / "out", reference)
    assert_no_commit_lost(job.entries())
