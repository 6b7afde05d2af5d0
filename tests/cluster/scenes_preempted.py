"""Scenes: jobs that Slurm preempts by partition. Each takes a stage and asserts what becomes of its job."""

from __future__ import annotations

from job_wrapper.errors import ExitCode
from job_wrapper.store.io_types import Kind
from tests.cluster.counting import Handle, Stage


def urgent_commits(job: Handle) -> list[str]:
    """Why the commits were made that were not due by time."""
    return [reason for reason in job.kinds(Kind.COMMIT) if reason not in ("interval", "finished")]


def started_once_more(stage: Stage, job: Handle) -> None:
    """24.05 and later start a job again that left its grace by a requeue and has since finished: it finds that, and ends at once."""
    assert job.now.restart_count == (2 if stage.modern else 1)
    assert len(job.starts) == 2


def grace_0(stage: Stage) -> None:
    """Nothing but KillWait is left: enough for the checkpoint."""
    job = stage.counting("--partition=grace0")
    stage.preempt(job)
    job.until_back()
    job.finish()
    assert job.interrupted == ["requeued"]
    assert urgent_commits(job) == ["SIGTERM"]
    assert job.now.restart_count == 1


def grace_60(stage: Stage) -> None:
    """SIGTERM reaches the step: it leaves after its checkpoint, without using up the grace."""
    job = stage.counting("--partition=grace60")
    stage.preempt(job)
    job.until_back()
    job.finish()
    assert job.interrupted == ["preempted"]
    assert urgent_commits(job) == ["SIGTERM"]
    started_once_more(stage, job)


def grace_300_with_a_signal_for_the_steps(stage: Stage) -> None:
    """send_user_signal: Slurm sends USR1 in SIGTERM's place (each version has its own word for that in slurm.conf)."""
    job = stage.counting("--partition=grace300", "--signal=USR1@30")
    stage.preempt(job)
    job.until_back(timeout=200)
    job.finish()
    assert job.interrupted == ["preempted"]
    assert urgent_commits(job) == ["SIGUSR1"]
    started_once_more(stage, job)


def grace_300_with_a_signal_for_the_batch_script(stage: Stage) -> None:
    """It ends a shell that has no trap for it, and the step with it. 22.05 shows the job FAILED; the manager brings it back."""
    job = stage.counting("--partition=grace300", "--signal=B:USR1@30")
    stage.preempt(job)
    job.until_back(timeout=200)
    job.finish()
    assert len(job.interrupted) == 1
    assert job.now.restart_count == 1


def grace_that_the_wrapper_does_not_hear_of(stage: Stage) -> None:
    """The warning goes to a batch script that ignores it. At the end of the grace the step has KillWait, and saves."""
    job = stage.submit(f"trap '' USR1\n{stage.wrapped()}", "--partition=grace10", "--signal=B:USR1@30")
    job.until_counting(1)
    stage.preempt(job)
    job.until_back()
    job.finish()
    assert job.interrupted == ["requeued"]
    assert urgent_commits(job) == ["SIGTERM"]
    started_once_more(stage, job)


def wrapper_in_the_batch_script(stage: Stage) -> None:
    """No signal reaches it there: it sees the job's PreemptTime."""
    job = stage.counting("--partition=grace300", srun="exec")
    stage.preempt(job)
    job.until_back(timeout=200)
    job.finish()
    assert job.interrupted == ["slurm preempt"]
    assert "which Slurm does not signal before preemption" in job.output


def program_that_ends_at_the_signal(stage: Stage) -> None:
    """Within the grace, with success: up to 23.11 that would complete the job. The wrapper stays and requeues it."""
    # Not at once: slurmstepd signals one process after the other, and a program that has ended before the wrapper is told ended by itself.
    program = (
        "python3 -c 'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(time.sleep(0.1))); "
        'print("starts at 1", flush=True); time.sleep(3600)\''
    )
    job = stage.submit(
        f"srun spotburst run --interval 2s --state-dir /run/state-$SLURM_JOB_ID -- {program}", "--partition=grace60"
    )
    job.until(lambda: job.starts, "its program")
    stage.preempt(job)
    job.until(lambda: len(job.starts) > 1, "its second attempt")
    assert job.interrupted == ["preempted"]
    assert job.kinds(Kind.END) == []


def no_requeue(stage: Stage) -> None:
    """Said at once. With ``--on-interruption fail`` it is preempted after its checkpoint, and stays ended."""
    refused = stage.submit(stage.wrapped(), "--partition=grace60", "--no-requeue")
    refused.until_state("FAILED")
    assert refused.now.exit_code == ExitCode.NOT_REQUEUEABLE
    assert "was submitted with --no-requeue" in refused.output
    job = stage.counting("--partition=grace60", "--no-requeue", options="--on-interruption fail")
    stage.preempt(job)
    job.until_state("PREEMPTED", "FAILED")
    assert urgent_commits(job) == ["SIGTERM"]
    assert job.kinds(Kind.END) == ["Preempted"]
    assert job.now.restart_count == 0


def without_the_wrapper(stage: Stage) -> None:
    """Slurm alone requeues it at the end of the grace, which it notices up to 30 s late. It begins anew."""
    job = stage.submit("""srun bash -c "trap '' TERM; echo began; sleep 3600" """, "--partition=grace10")
    job.until(lambda: "began" in job.output, "its program")
    stage.preempt(job)
    job.until_running(1, timeout=300)


def without_the_wrapper_ending_within_the_grace(stage: Stage) -> None:
    """Slurm's own rule, with which nothing here interferes: up to 23.11 it is completed, from 24.05 on requeued."""
    job = stage.submit("""srun bash -c "trap 'exit 0' TERM; echo began; sleep 3600 & wait" """, "--partition=grace60")
    job.until(lambda: "began" in job.output, "its program")
    stage.preempt(job)
    if stage.modern:
        job.until_running(1)
    else:
        job.until_state("COMPLETED")


def preempted_while_its_node_boots(stage: Stage) -> None:
    """22.05 forgets the preemption when the node is up, and then neither job moves: the manager requeues the one."""
    job = stage.submit(stage.wrapped(), "--partition=slow", "--nodelist=slow-1")
    job.until(lambda: job.now.has("CONFIGURING"), "its node to boot")
    other = stage.preempt(job)
    other.until_state("COMPLETED", timeout=300)
    job.until(
        lambda: job.kinds(Kind.COMMIT), "a commit"
    )  # by its first attempt, or by the next if that one was preempted at its start
    job.finish()
    assert len(job.starts) <= 2


def several_preempted_while_their_nodes_boot(stage: Stage) -> None:
    """slurmctld has signals for nodes whose machines were not even asked for. It must neither stand still for that nor lose a job."""
    jobs = [stage.submit(stage.wrapped(), "--partition=slow", f"--nodelist=slow-{n}") for n in range(3, 7)]
    for job in jobs:
        # Which boots; on a busy machine it may be up before the last of them has its turn.
        job.until(lambda job=job: job.now.nodes, "its node")
        stage.preempt(job)
    for job in jobs:
        job.until(lambda job=job: job.kinds(Kind.COMMIT), "a commit")
        job.finish()
    assert "getaddrinfo(slow-" not in (stage.cluster.log / "slurmctld.log").read_text(errors="replace")
