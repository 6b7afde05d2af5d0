"""Scenes: what users and administrators do to jobs and nodes. Each takes a stage and asserts what becomes of its job."""

from __future__ import annotations

from tests.cluster.counting import Handle, Stage


def requeue(stage: Stage) -> None:
    job = stage.counting()
    stage.client.requeue(job.id)
    job.until_back()
    job.finish()


def requeuehold(stage: Stage) -> None:
    job = stage.counting()
    stage.client.requeue(job.id, hold=True)
    job.until(lambda: job.now.states == {"PENDING"}, "to be held")
    stage.client.release(job.id)
    job.until_back()
    job.finish()


def scancel(stage: Stage) -> None:
    job = stage.counting()
    stage.cluster.run("scancel", job.id)
    job.until_state("CANCELLED")


def time_limit(stage: Stage) -> None:
    job = stage.counting("--time=1", "--signal=USR1@40")
    job.until_state("TIMEOUT", timeout=150)


def power_down_force(stage: Stage) -> None:
    job = stage.counting()
    stage.client.update_nodes([job.now.nodes[0]], state="power_down_force")
    job.until_back()
    job.finish()


def exclusive_node_reclaimed(stage: Stage) -> None:
    job = stage.counting("--exclusive")
    stage.cluster.cloud().reclaim(job.now.nodes[0])
    job.until_back()
    job.finish()


def exclusive_node_lost(stage: Stage) -> None:
    job = stage.counting("--exclusive")
    stage.cluster.cloud().vanish(job.now.nodes[0])
    job.until_back()
    job.finish()


def array_task(stage: Stage) -> None:
    array = stage.submit(stage.wrapped(), "--array=1-2").id
    one, two = Handle(stage, f"{array}_1"), Handle(stage, f"{array}_2")
    one.until_committed(1)
    two.until_committed(1)
    stage.cluster.cloud().reclaim(one.now.nodes[0])
    one.until_back()
    assert two.now.restart_count == 0
    one.finish()
    two.finish()
    assert len(two.starts) == 1


def heterogeneous(stage: Stage) -> None:
    script = stage.cluster.root / "het.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=1\n"
        + stage.wrapped(srun="srun --het-group=0")
        + "\n"
    )
    answer = stage.cluster.run("sbatch", "--parsable", f"--output={stage.cluster.root}/jobs/%j_4294967294.out", script)
    job = Handle(stage, f"{answer.strip()}+0")
    job.until(lambda: job.now.running, "to run")
    job.until(lambda: "committed" in job.output, "to commit")
    stage.cluster.cloud().reclaim(job.now.nodes[0])
    job.until(lambda: len(job.starts) > 1, "to be back")


def dependent(stage: Stage) -> None:
    job = stage.counting()
    after = stage.submit("true", f"--dependency=afterok:{job.id}")
    stage.client.requeue(job.id)
    job.until_back()
    assert after.now.has("PENDING")
    job.finish()
    after.until_state("COMPLETED")
