"""What the wrapper's own exit codes mean, for ``describe``: a wrapper that gave up before its claim has left no word in the log."""

from __future__ import annotations

from job_wrapper.errors import ExitCode

_MEANINGS: dict[int, str] = {
    ExitCode.FENCED: "Fenced: a newer attempt holds the run",
    ExitCode.STORE_REFUSED: "StoreRefused: its place of checkpoints can't be used; `spotburst store check` says why",
    ExitCode.RUN_HELD: "RunHeld: another live job, or another program of this one, holds the run",
    ExitCode.RESTORE_FAILED: "RestoreFailed: no checkpoint could be restored; `spotburst checkpoints JOB --verify` says which are damaged",
    ExitCode.NO_PROGRESS: "NoProgress: two attempts in a row ended without a commit",
    ExitCode.MAX_ATTEMPTS: "MaxAttempts: it was brought back as often as is allowed",
    ExitCode.CONFIG_CHANGED: "ConfigChanged: the program's configuration is not the checkpoint's",
    ExitCode.CHECKPOINT_FAILED: "CheckpointFailed: a checkpoint could not be made",
    ExitCode.NOT_REQUEUEABLE: "NotRequeueable: Slurm does not bring this job back (--no-requeue, JobRequeue=0, or no batch job): put "
    "`#SBATCH --requeue` into its script, or run with --on-interruption fail",
    ExitCode.STORE_AWAY: "StoreAway: the checkpoint store could not be reached",
    91: "Preempted: its capacity was taken away, and --on-interruption fail has the job end for that",
    92: "NodeLost: a node was lost, and --on-interruption fail has the job end for that",
}


def meaning(code: int) -> str | None:
    """Reason and words for an exit code of the wrapper's own; None for any other. Pure."""
    return _MEANINGS.get(code)
