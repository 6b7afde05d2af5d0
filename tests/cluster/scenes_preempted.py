"""Scenes: jobs that Slurm preempts by partition. Each takes a stage and asserts what becomes of its job."""

from __future__ import annotations

from job_wrapper.errors import ExitCode
from tests.cluster.counting import Stage


def grace_0(stage: Stage) -> None:
    job = stage.counting("--partition=grace0")
    stage.preempt(job)
    job.until_back()
    job.finish()


def grace_10(stage: Stage) -> None:
    job = stage.counting("--partition=grace10")
    stage.preempt(job)
    job.until_back()
    job.finish()


def grace_300_with_a_signal_for_the_steps(stage: Stage) -> None:
    job = stage.counting("--partition=grace300", "--signal=USR1@30")
    stage.preempt(job)
    job.until_back()
    job.finish()


def grace_300_with_a_signal_for_the_batch_script(stage: Stage) -> None:
    job = stage.counting("--partition=grace300", "--signal=B:USR1@30")
    stage.preempt(job)
    job.until_back()
    job.finish()


def wrapper_in_the_batch_script(stage: Stage) -> None:
    job = stage.counting("--partition=grace300", srun="exec")
    stage.preempt(job)
    job.until_back()
    job.finish()


def program_that_ends_at_the_signal(stage: Stage) -> None:
    program = (
        "python3 -c 'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
        'print("starts at 1", flush=True); time.sleep(3600)\''
    )
    job = stage.submit(
        f"srun spotburst run --interval 2s --state-dir /run/state-$SLURM_JOB_ID -- {program}", "--partition=grace10"
    )
    job.until(lambda: job.starts, "its program")
    stage.preempt(job)
    job.until(lambda: len(job.starts) > 1, "its second attempt")


def no_requeue(stage: Stage) -> None:
    """Said at once; with ``--on-interruption fail`` it is preempted after its checkpoint, and stays ended."""
    refused = stage.submit(stage.wrapped(), "--partition=grace10", "--no-requeue")
    refused.until_state("FAILED")
    assert refused.now.exit_code == ExitCode.NOT_REQUEUEABLE
    assert "--no-requeue" in refused.output
    job = stage.counting("--partition=grace10", "--no-requeue", options="--on-interruption fail")
    stage.preempt(job)
    job.until_state("PREEMPTED", "FAILED", "COMPLETED", "CANCELLED")


def without_the_wrapper(stage: Stage) -> None:
    """Slurm alone requeues it at the end of the grace, which it notices up to 30 s late."""
    job = stage.submit("""srun bash -c "trap '' TERM; echo began; sleep 3600" """, "--partition=grace10")
    job.until(lambda: "began" in job.output, "its program")
    stage.preempt(job)
    job.until_running(1)


def without_the_wrapper_ending_within_the_grace(stage: Stage) -> None:
    job = stage.submit("""srun bash -c "trap 'exit 0' TERM; echo began; sleep 3600 & wait" """, "--partition=grace10")
    job.until(lambda: "began" in job.output, "its program")
    stage.preempt(job)
    if stage.modern:
        job.until_running(1)
    else:
        job.until_state("COMPLETED")
