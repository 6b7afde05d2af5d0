"""What can go wrong on the node side, typed, and the exit code that each kind ends the wrapper with.

Every message tells what is wrong, where, and what to do. A user sees ``spotburst: <message>``, never a traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``spotburst run`` that are its own; any other is the program's, passed through.

    They lie in 80..99: above sysexits.h (64..78), below the shell's 126.. and the 128+n of signals.
    """

    OK = 0
    USAGE = 2
    FENCED = 80
    """A newer attempt holds the run: this one stopped its program and wrote nothing more."""
    STORE_REFUSED = 81
    """The checkpoint URI cannot be used safely (not writable, unreachable, or without put-if-absent)."""
    RUN_HELD = 82
    """Another live job, or another program of this job, holds the run."""
    RESTORE_FAILED = 83
    """No checkpoint of the run could be restored, or the same one failed twice."""
    NO_PROGRESS = 84
    """Two attempts in a row ended without a new commit."""
    MAX_ATTEMPTS = 85
    """More recoveries than the bound allows."""
    CONFIG_CHANGED = 86
    """The program's configuration differs from the checkpoint's."""
    CHECKPOINT_FAILED = 87
    """A checkpoint could not be made (too large, disk full, refused by the store)."""
    NOT_REQUEUEABLE = 88
    """The job can't be requeued (``--no-requeue``, ``salloc``, ``srun`` without a batch job)."""
    REQUEUED = 89
    """This attempt was interrupted and the job was requeued: Slurm records REQUEUED, not this code."""
    STORE_AWAY = 90
    """The store could not be reached for ``--store-patience``. An interruption: the job is brought back and goes on from its last commit."""
    PREEMPTED = 91
    """The capacity was taken away with a warning, and ``--on-interruption fail`` has the job end for it."""
    NODE_LOST = 92
    """A node was lost without one, and ``--on-interruption fail`` has the job end for it."""


BEGIN_ANEW = "begin anew as another run: submit a new job, or give another name (`spotburst run --run NAME`, Checkpointer(run=NAME))"
"""How the work is begun from nothing, for messages about a checkpoint that can't be gone on from."""


class SpotburstError(Exception):
    """Base of all errors that a user can meet. ``str(error)`` is the whole message for the user."""

    exit_code: ExitCode = ExitCode.USAGE
    reason: str = "Error"
    """The typed reason as it stands in the log, in ``describe`` and in the job's comment."""


class UsageError(SpotburstError):
    """Wrong arguments or environment of a command."""

    reason = "Usage"


class StoreError(SpotburstError):
    """The object store failed or answered nonsense; the operation may be tried again."""

    exit_code = ExitCode.STORE_REFUSED
    reason = "StoreUnavailable"


class StoreRefused(StoreError):
    """The store is not safe to use (no put-if-absent, not writable, unknown scheme). Trying again won't help."""

    reason = "StoreRefused"


class ObjectMissing(StoreError):
    """The object asked for is not in the store."""

    reason = "ObjectMissing"


class Damaged(StoreError):
    """Stored bytes are not those that were written: wrong checksum, wrong length, unreadable or foreign."""

    exit_code = ExitCode.RESTORE_FAILED
    reason = "Damaged"


class NewerFormat(Damaged):
    """Written by a newer spotburst than this one."""

    reason = "NewerFormat"


class Fenced(SpotburstError):
    """A newer epoch has claimed the run. The holder must stop its program and write nothing more."""

    exit_code = ExitCode.FENCED
    reason = "Fenced"


class RunHeld(SpotburstError):
    """The run is held by another live job, or this attempt's claim is not newer than one already made."""

    exit_code = ExitCode.RUN_HELD
    reason = "RunHeld"


class RestoreFailed(SpotburstError):
    """No checkpoint could be restored though there are some, or the same one failed twice."""

    exit_code = ExitCode.RESTORE_FAILED
    reason = "RestoreFailed"


class NoProgress(SpotburstError):
    """Two attempts in a row ended without a new commit (DESIGN §5)."""

    exit_code = ExitCode.NO_PROGRESS
    reason = "NoProgress"


class MaxAttempts(SpotburstError):
    """More recoveries than the bound allows (8; 3 for multi-node)."""

    exit_code = ExitCode.MAX_ATTEMPTS
    reason = "MaxAttempts"


class ConfigChanged(SpotburstError):
    """The configuration differs from the one that the checkpoint was made with."""

    exit_code = ExitCode.CONFIG_CHANGED
    reason = "ConfigChanged"


class CheckpointFailed(SpotburstError):
    """A checkpoint could not be made. The previous commit stands."""

    exit_code = ExitCode.CHECKPOINT_FAILED
    reason = "CheckpointFailed"


class CheckpointTooLarge(CheckpointFailed):
    """The state is larger than ``max_size``."""

    reason = "CheckpointTooLarge"


class StoreAway(CheckpointFailed):
    """The store can't be reached now, and has not come back while it was waited for. The previous commit stands; later it may work."""

    exit_code = ExitCode.STORE_AWAY
    reason = "StoreAway"


class Preempted(SpotburstError):
    """The capacity was taken away with a warning, and ``--on-interruption fail`` was given."""

    exit_code = ExitCode.PREEMPTED
    reason = "Preempted"


class NodeLost(SpotburstError):
    """A node was lost without a warning, and ``--on-interruption fail`` was given."""

    exit_code = ExitCode.NODE_LOST
    reason = "NodeLost"


class NotRequeueable(SpotburstError):
    """Slurm will not bring this job back."""

    exit_code = ExitCode.NOT_REQUEUEABLE
    reason = "NotRequeueable"


def may_pass(error: BaseException) -> bool:
    """Whether it is a store that can't be reached, or is full, now: what an outage looks like, and what waiting may help. Pure."""
    if isinstance(error, StoreError):
        return not isinstance(error, StoreRefused | ObjectMissing | Damaged)
    return isinstance(error, StoreAway)


def kind_of(error: BaseException) -> str:
    """How an error is named between wrapper and program: ``StoreAway`` for an outage, else its own reason."""
    if may_pass(error):
        return StoreAway.reason
    return error.reason if isinstance(error, SpotburstError) else type(error).__name__
