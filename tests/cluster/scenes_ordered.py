"""Scenes: what users and administrators do to jobs and nodes. Each takes a stage and asserts what becomes of its job."""

from __future__ import annotations

import time

from job_wrapper.store.io_types import Kind
from slurm_plugin.reconcile.flags import ready
from tests.cluster.counting import Handle, Stage


def requeue(stage: Stage) -> None:
    job = stage.counting()
    stage.client.requeue(job.id)
    job.until_back()
    job.finish()
    assert job.interrupted == ["requeued"]
    assert job.now.restart_count == 1


def requeuehold(stage: Stage) -> None:
    """It stays held, with its checkpoint, until it is released: its begin time is not brought forward before."""
    job = stage.counting()
    stage.client.requeue(job.id, hold=True)
    job.until(lambda: job.now.states == {"PENDING"}, "to be held")
    assert job.now.priority == 0
    assert job.interrupted == ["requeued"]
    stage.client.release(job.id)
    job.until_back()
    job.finish()


def scancel(stage: Stage) -> None:
    """It ends after its checkpoint, and stays ended."""
    job = stage.counting()
    stage.cluster.run("scancel", job.id)
    job.until_state("CANCELLED")
    assert job.interrupted == ["the job was ended"]
    assert job.now.restart_count == 0


def time_limit(stage: Stage) -> None:
    """The warning makes a checkpoint and the job goes on; at the limit it ends after another one, and stays ended."""
    # Slurm warns at its first tick of 30 s from 31 s before the limit on, and ends the job at the next or the one after. Of a warning that
    # comes while the job starts its step hears nothing.
    job = stage.counting("--time=1", "--signal=USR1@1")
    job.until_state("TIMEOUT", timeout=300)
    assert "the job goes on after this checkpoint" in job.output
    assert [c for c in job.kinds(Kind.COMMIT) if c.startswith("SIG")] == ["SIGUSR1", "SIGTERM"]
    assert job.interrupted == ["the job was ended"]
    assert job.now.restart_count == 0


def power_down_force(stage: Stage) -> None:
    """For Slurm the node failed; its step still has KillWait, and saves."""
    job = stage.counting()
    stage.client.update_nodes([job.now.nodes[0]], state="power_down_force")
    job.until_back()
    job.finish()
    assert job.interrupted == ["requeued"]


def node_reboots(stage: Stage) -> None:
    """Without a word: all its processes are gone, and slurmd registers anew. The job goes on from its last commit."""
    job = stage.counting()
    job.until(lambda: time.time() > job.now.start_time + 10, "to have run for longer than the margin of that look")
    reboot(stage, job.now.nodes[0])
    job.until_back()
    job.finish()
    assert job.interrupted == []
    assert job.now.restart_count == 1


def reboot(stage: Stage, node: str) -> None:
    """End every process of a machine but its first, and start slurmd as a boot would."""
    cloud = stage.cluster.cloud()
    (machine,) = [m for m in cloud.yard.machines() if m.spec["node"] == node and not m.gone]
    assert machine.process is not None
    enter = ("nsenter", "--target", str(machine.process.pid), "--all", "--wdns=/")
    stage.cluster.run(*enter, "bash", "-c", "kill -KILL -1", check=False)
    (command,) = [c for c in machine.spec["commands"] if c["name"] == "slurmd"]
    script = 'setsid "$@" </dev/null >/dev/null 2>&1 &'
    stage.cluster.run(*enter, "bash", "-c", script, "bash", *command["argv"], env=command["env"])


def maintenance(stage: Stage) -> None:
    """A reservation that leaves running jobs alone: the job goes on. Once it is requeued it comes back elsewhere."""
    job = stage.counting()
    node = job.now.nodes[0]
    stage.cluster.run(
        *("scontrol", "create", "reservation", "reservationname=repair", "starttime=now", "duration=30"),
        *("flags=maint,ignore_jobs", "users=root", f"nodes={node}"),
    )
    stage.wait(lambda: not ready(stage.node(node)) and not stage.node(node).has("IDLE"), "the reservation")
    assert job.now.running
    stage.client.requeue(job.id)
    stage.wait(lambda: stage.node(node).has("IDLE"), "the node to be idle")
    assert not ready(stage.node(node)), "nobody may be sent to a node in maintenance"
    job.until_back()
    assert job.now.nodes[0] != node
    job.finish()


def exclusive_node_reclaimed(stage: Stage) -> None:
    job = stage.counting("--exclusive")
    stage.cluster.cloud().reclaim(job.now.nodes[0])
    job.until_back()
    job.finish()


def exclusive_node_lost(stage: Stage) -> None:
    """Real clusters left such a job in BadConstraints for ever."""
    job = stage.counting("--exclusive")
    stage.cluster.cloud().vanish(job.now.nodes[0])
    job.until_back()
    job.finish()


def left_in_bad_constraints(stage: Stage) -> None:
    """A requeued job that nothing fits for a moment: Slurm gives it priority 0, with which it would wait for ever. The manager releases it."""
    node = "rare-1"  # in a partition of its own: another scene's job on it would have to end first

    def features(words: str) -> None:
        change = (f"nodename={node}", f"availablefeatures={words}", f"activefeatures={words}")
        stage.cluster.run("scontrol", "update", *change)

    features("spot,rare")
    job = stage.counting("--partition=rare", "--constraint=rare")
    features("spot")
    stage.client.requeue(job.id)
    # Both in one look: by the next the manager may have released it.
    job.until(
        lambda: (seen := job.now).reason == "BadConstraints" and seen.priority == 0, "BadConstraints", timeout=300
    )
    features("spot,rare")
    job.until_back()
    job.finish()
    assert "manager: Slurm left it in BadConstraints" in stage.cluster.run("spotburst", "describe", job.id)


def array_task(stage: Stage) -> None:
    array = stage.submit(stage.wrapped(), "--array=1-2").id
    one, two = Handle(stage, f"{array}_1"), Handle(stage, f"{array}_2")
    one.until_counting(1)
    two.until_counting(1)
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
    job.until(lambda: "committed" in job.output and job.starts, "to commit")
    stage.cluster.cloud().reclaim(job.now.nodes[0])
    job.until(lambda: len(job.starts) > 1, "to be back", timeout=300)


def dependent(stage: Stage) -> None:
    job = stage.counting()
    after = stage.submit("true", f"--dependency=afterok:{job.id}")
    stage.client.requeue(job.id)
    job.until_back()
    assert after.now.has("PENDING")
    job.finish()
    after.until_state("COMPLETED")
