"""Scenes on a cluster with accounting, where a QOS preempts another. Each asserts what becomes of its job, and what sacct keeps of it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.counting import Handle, Stage
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed

STEPS = 120


def prepare(stage: Stage) -> None:
    """A QOS that takes nodes, and two from which it does."""
    for name, grace in (("low0", 0), ("low60", 60)):
        stage.cluster.run("sacctmgr", "-i", "add", "qos", name, f"GraceTime={grace}", "PreemptMode=requeue")
    stage.cluster.run("sacctmgr", "-i", "add", "qos", "high", "Preempt=low0,low60", "Priority=1000")


def preempt(stage: Stage, job: Handle) -> None:
    """By QOS, in the same partition."""
    stage.submit("sleep 1", "--qos=high", f"--nodelist={job.now.nodes[0]}")


def main_job(stage: Stage) -> None:
    """Notice, commit, requeue, resume: ends with the same bits as one that nobody touched."""
    with TemporaryDirectory(dir=stage.cluster.root) as folder:
        job = Training(stage.cluster, STEPS, 0.5, Path(folder) / "out", options=("--gres=none",)).submit()
        job.until_step(20)
        stage.cluster.cloud().reclaim(job.node())
        reference = undisturbed(Path(folder) / "undisturbed", STEPS)
        job.until_epoch(2)
        job.until_finished()
        assert_same(Path(folder) / "out", reference)
        assert_no_commit_lost(job.entries())
        assert len(job.attempts()) == 2
        Handle(stage, job.job).until_recorded("REQUEUED", "COMPLETED")


def qos_grace_0(stage: Stage) -> None:
    job = stage.counting("--qos=low0")
    preempt(stage, job)
    job.until_back()
    job.finish()
    assert job.interrupted == ["requeued"]
    job.until_recorded("PREEMPTED", "COMPLETED")


def qos_grace_60(stage: Stage) -> None:
    """It leaves within its grace, after its checkpoint. Slurm 24.05 and later then start it once more when it has finished."""
    job = stage.counting("--qos=low60")
    preempt(stage, job)
    job.until_back()
    job.finish()
    assert job.interrupted == ["preempted"]
    job.until_recorded("REQUEUED", *(["PREEMPTED"] if stage.modern else []), "COMPLETED")


def requeue_by_a_user(stage: Stage) -> None:
    job = stage.counting()
    stage.client.requeue(job.id)
    job.until_back()
    job.finish()
    job.until_recorded("REQUEUED", "COMPLETED")


def scancel(stage: Stage) -> None:
    job = stage.counting()
    stage.cluster.run("scancel", job.id)
    job.until_state("CANCELLED")
    assert job.interrupted == ["the job was ended"]
    job.until_recorded("CANCELLED by 0")


def node_lost(stage: Stage) -> None:
    job = stage.counting()
    stage.cluster.cloud().vanish(job.now.nodes[0])
    job.until_back()
    job.finish()
    job.until_recorded("NODE_FAIL", "COMPLETED")


def cancelled_by_the_manager(stage: Stage) -> None:
    """Why a job was given up while it waited outlives slurmctld's memory of it: the accounting keeps AdminComment, by default not Comment."""
    job = stage.submit("true", "--hold", "--comment=mine")
    stage.client.set_admin_comment(job.id, 'spotburst: CapacityUnavailable: "none" = left')
    stage.client.cancel(job.id)
    job.until_state("CANCELLED")
    job.until_recorded("CANCELLED by 0")
    ask = ("sacct", "-X", "-n", "-P", "-j", job.id, "-o", "AdminComment")
    kept = stage.cluster.wait_for(lambda: stage.cluster.run(*ask).strip(), 30, "sacct's AdminComment")
    assert kept == 'spotburst: CapacityUnavailable: "none" = left'
