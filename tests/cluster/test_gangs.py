"""Jobs on two nodes: one is reclaimed, or cut off, and both stop at one step, come back as one job, and end as if nobody had touched them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from job_wrapper.store.io_types import Kind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster.test_main_job import processes_of
from tests.cluster.training import EXAMPLES, Training, assert_equal, assert_no_commit_lost

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

STEPS = 60
STEP_TIME = 1.0
"""Seconds, in the attempts that are to be interrupted."""
PATIENCE = 300
"""Seconds: each attempt imports torch in up to four processes."""


SCRIPT = """#!/bin/bash
[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || export LAUNCH=srun
[ "${SLURM_RESTART_COUNT:-0}" -lt 2 ] || set -- "$@" --step-time 0
exec bash "$SCRIPT" "$@"
"""


@dataclass
class Gang(Training):
    """One job that runs examples/train_fsdp.sbatch on two nodes: at first with torchrun, then with a task a rank."""

    def submit(self) -> Gang:
        """``sbatch``."""
        arguments = ["--steps", self.steps, "--step-time", self.step_time, "--out", self.out]
        given = {"TRAIN": str(EXAMPLES / "train_fsdp.py"), "TRAIN_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        script = self.out.with_suffix(".sbatch")
        script.write_text(SCRIPT, encoding="utf-8")
        answer = self.cluster.run(
            *("sbatch", "--parsable", f"--output={self.cluster.root}/jobs/%j.out", "--open-mode=append"),
            *("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1", script, *map(str, arguments)),
            env={**given, "SCRIPT": str(EXAMPLES / "train_fsdp.sbatch")},
        )
        self.job = answer.strip()
        return self

    def nodes(self) -> list[str]:
        """Of the running job, in the order of its tasks."""
        names = self.cluster.run("squeue", "-h", "-j", self.job, "-o", "%N").strip()
        return self.cluster.run("scontrol", "show", "hostnames", names).split()


@pytest.fixture
def cluster(make_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    plan = default_settings(4)
    plan["checkpoints"] = {"interval": "2s"}
    plan["manager"] = {"silent_prepare": "2s", "silent_down": "6s"}
    made = make_cluster(settings=plan)
    made.cloud().set_linger(120)
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same two ranks without Slurm, and never touched: their final weights."""
    out = tmp_path_factory.mktemp("undisturbed") / "final.pt"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SPOTBURST"))}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, EXAMPLES / "train_fsdp.py", "--steps", str(STEPS), "--out", out]
    subprocess.run(command, check=True, env={**environment, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    return out


def test_two_nodes_reclaimed_and_cut_off(cluster: LocalCluster, undisturbed: Path, tmp_path: Path) -> None:
    """torchrun at first; from the second attempt on a task a rank. The second node is reclaimed, and the one after it cut off silently."""
    job = Gang(cluster, STEPS, STEP_TIME, tmp_path / "final.pt").submit()
    job.until_step(10, timeout=PATIENCE)
    first = job.nodes()
    cluster.cloud().reclaim(first[1])
    job.until_epoch(2, timeout=PATIENCE)
    second, old = job.nodes(), processes_of(cluster, job.job)
    assert first[0] in second and first[1] not in second, "only the node that is lost is replaced"
    cluster.cloud().cut(second[1])
    job.until_epoch(3, timeout=PATIENCE)
    assert second[0] in job.nodes() and second[1] not in job.nodes()
    job.until_finished(timeout=PATIENCE)
    entries = job.entries()
    assert_equal(torch.load(job.out), torch.load(undisturbed), "")
    assert_no_commit_lost(entries)
    left = next(e for e in entries if e.kind is Kind.INTERRUPTED)
    assert (left.epoch, left.body["reason"]) == (1, "aws reclaim")
    urgent = [e for e in entries if e.kind is Kind.COMMIT and e.body["urgent"] and e.epoch == 1]
    assert len(urgent) == 1 and left.summary.commits[-1].seq == urgent[0].seq, (
        "all ranks stopped at one step, and its checkpoint stands"
    )
    assert f"notice: aws reclaim ({first[1]})" in job.output
    cluster.wait_for(
        lambda: not set(old) & set(processes_of(cluster, job.job)), 180, "the rank that was cut off to be stopped"
    )
