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


CODES = {
    "0": "Done.",
    "1": "Looked at, and something is wrong: `check` found a fault, `checkpoints prune` could not delete all; or a question was answered with no.",
    "2": "Wrong arguments or settings, Slurm can't be asked, or the job is not in a state in which this can be done to it, or has not answered in time; "
    "of `manager`: its ledger was damaged while it ran.",
    "80 to 92": "As `spotburst run` ends with them, each with its reason: 81 where the store can't be used, 82 where a run is still in use, 83 where "
    "checkpoints are damaged, 87 where none could be made. docs/exit-codes.md has all.",
    "130": "Ended by Ctrl-C.",
    "141": "Whoever read the output has gone.",
    "any other": "Of `run` and `shell`: the exit code of the program that they started.",
}
"""Exit codes of all commands, for man pages; docs/exit-codes.md says the same."""


def meaning(code: int) -> str | None:
    """Reason and words for an exit code of the wrapper's own; None for any other. Pure."""
    return _MEANINGS.get(code)
