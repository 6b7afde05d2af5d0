"""Which rank 0 the other ranks hear: also where one attempt is launched twice on the same nodes, and where one launch has several parts."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from job_wrapper.store.io_types import Kind
from job_wrapper.store.paths import data_prefix, run_path
from tests.cluster.conftest import MakeCluster
from tests.cluster.counting import Handle, Stage
from tests.cluster.test_recalled import recall, save, settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NODES = ("spot-1", "spot-2")
SELDOM = "--interval 8s"
"""Rank 1 finds no more what rank 0 began from once that has made three commits, and may be that late on a busy machine."""


def rank_1_serves(job: Handle, epoch: int) -> bool:
    """Whether the wrapper on the job's second node has spoken to the rank 0 of that epoch."""
    store, run = job.stage.store, run_path(job.stage.cluster.config.cluster, job.id)
    return any("/000001-" in info.key for info in store.list(f"{data_prefix(run, epoch)}/gang/"))


def stepds(job: Handle) -> list[str]:
    """Pids of the slurmstepd of the job's steps. slurmd refuses to launch a job of which there is one; it outlives its tasks by seconds."""
    title, root, found = f"slurmstepd: [{job.id}.".encode(), job.stage.cluster.root, []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(title):
                # Another cluster here may have a job of that number. This one's logs lie in its folder.
                found += [process.name] * any(fd.readlink().is_relative_to(root) for fd in (process / "fd").iterdir())
    return found


@pytest.fixture(scope="module")
def stage(make_module_cluster: MakeCluster) -> Stage:
    made = Stage(make_module_cluster(settings=settings(2, suspend_time=600)), "22.05")
    made.boot(list(NODES))
    return made


def test_both_ranks_of_a_second_launch_go_on_together(stage: Stage, tmp_path: Path) -> None:
    """slurmctld is killed just after the start. The log names an attempt of the same job, restart count, step and nodes, which rank 1 must
    not take for its own."""
    job = stage.submit(stage.wrapped(SELDOM), "--hold", "--nodes=2", "--ntasks-per-node=1")
    save(stage, job, tmp_path)
    stage.client.release(job.id)
    job.until_committed(1)
    job.until(lambda: rank_1_serves(job, 1), "rank 1")
    assert len(stepds(job)) == 3, "the batch script's, and one on each node"

    recall(stage, tmp_path)
    job.until(lambda: not stepds(job), "slurmd to end what slurmctld holds to be pending")
    stage.client.release(job.id)
    job.until_committed(2)
    job.until(lambda: rank_1_serves(job, 2), "rank 1 to go on with rank 0")
    assert (job.now.nodes, job.now.restart_count) == (NODES, 0)
    job.finish()
    assert [entry.epoch for entry in job.entries() if entry.kind is Kind.CLAIM] == [1, 2]


def test_a_step_that_is_launched_in_parts_has_one_rank_0(stage: Stage) -> None:
    """``srun … : …``, whose parts see ports of their own."""
    job = stage.submit(f"{stage.wrapped(SELDOM, 'srun -N1')} : {stage.wrapped(SELDOM, '-N1')}", "--nodes=2")
    job.until_committed(1)
    job.until(lambda: rank_1_serves(job, 1), "rank 1")
    job.finish()
