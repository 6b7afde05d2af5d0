"""Typed reasons in a few words, for a job's comment. docs/failures.md has them all at length, with what to do."""

from __future__ import annotations

WORDS = {
    "ProgramFailed": "the program failed; it is not tried again",
    "OutOfMemory": "the program ran out of memory; it is not tried again: ask for more (--mem)",
    "ProgramKilled": "the program was killed from outside (SIGKILL)",
    "Fenced": "a newer attempt holds the run",
    "StoreRefused": "the place for checkpoints can't be used: spotburst store check URI",
    "StoreUnavailable": "the place for checkpoints can't be reached: spotburst store check URI",
    "RunHeld": "another live job, or another program of this job, holds the run",
    "RestoreFailed": "no checkpoint could be restored, or the same one failed twice",
    "Damaged": "a checkpoint is damaged",
    "NewerFormat": "the run was written by a newer spotburst",
    "NoProgress": "attempts in a row ended without a new checkpoint",
    "MaxAttempts": "it was brought back as often as recovery.max_attempts allows",
    "ConfigChanged": "the program's configuration is not its checkpoint's",
    "CheckpointFailed": "a checkpoint could not be made; the one before it stands",
    "CheckpointTooLarge": "the state is larger than --max-size; the checkpoint before it stands",
    "NotRequeueable": "Slurm can't requeue this job",
    "Preempted": "its capacity was taken away",
    "NodeLost": "its node was lost",
}


def said(reason: str, code: int) -> str:
    """``NoProgress: attempts in a row … (exit code 84)``."""
    return f"{reason}: {WORDS.get(reason, 'the wrapper gave the run up')} (exit code {code})"
