"""What can happen to the wrapper, and what it can do: plain values between `machine` (decides) and `loop` (acts).

Named tuples rather than dataclasses, which cost a millisecond each at start. So compare types too: those without fields are equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from job_wrapper.notice.types import Notice
from job_wrapper.slurm_job import JobView
from job_wrapper.store.io_types import ObjectRef

# Events


class Ready(NamedTuple):
    """The run is claimed and the state directories are restored: the program may start.

    ``parts``: its newest checkpoint holds parts of the program's own. ``committed_at``: when that one was made (Unix seconds).
    """

    parts: bool = False
    committed_at: float | None = None


class GiveUp(NamedTuple):
    """This attempt can't go on: the claim was refused, a bound is reached, nothing can be restored.

    ``write``: ``end`` is still to be put into the log.
    """

    code: int
    reason: str
    text: str
    write: bool = False


class Subscribed(NamedTuple):
    """A program will answer requests."""

    client: int


class Left(NamedTuple):
    """A connection is closed."""

    client: int


class Acked(NamedTuple):
    """``checkpoint.ack``: the state directories are consistent."""

    client: int
    seq: int


class Declined(NamedTuple):
    """``checkpoint.failed`` from the program. ``kind`` as ``errors.kind_of`` gives it."""

    client: int
    seq: int
    error: str
    kind: str = ""


class CommitAsked(NamedTuple):
    """``checkpoint.commit``: these parts are in the store."""

    client: int
    seq: int | None
    step: int | None
    parts: dict[str, ObjectRef]


class Heard(NamedTuple):
    """A watcher saw a notice."""

    notice: Notice


class Withdrawn(NamedTuple):
    """The notice is gone from its source."""


class Signalled(NamedTuple):
    """SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 reached the wrapper."""

    number: int


class JobSeen(NamedTuple):
    """Slurm's answer about this job; None: no answer, nothing may be concluded."""

    view: JobView | None


class Committed(NamedTuple):
    """The commit in flight is in the log."""

    entry: int
    seconds: float


class CommitFailed(NamedTuple):
    """The commit in flight was not made.

    ``again``: the store failed, the same may work later. ``nothing``: there are no files to save, which is no failure;
    ``quiet``: and nothing that a user need hear. ``kind`` as ``errors.kind_of`` gives it; ``code`` is its exit code.
    """

    error: str
    again: bool
    nothing: bool = False
    quiet: bool = False
    kind: str = "CheckpointFailed"
    code: int = 87


class IsFenced(NamedTuple):
    """A newer epoch holds the run."""

    epoch: int


class Written(NamedTuple):
    """The last ``interrupted`` or ``end`` entry is in the log, or can't be (``error``; ``again``: not now)."""

    error: str = ""
    again: bool = False


class Requeued(NamedTuple):
    """``scontrol requeue`` said yes."""


class RequeueRefused(NamedTuple):
    """It did not; in Slurm's words."""

    text: str


class Exited(NamedTuple):
    """The program ended: exit code, or minus the signal. ``oom``: the kernel killed for memory while it ran."""

    status: int
    oom: bool = False


class Tick(NamedTuple):
    """``machine.wake`` has come."""


Event = (
    Ready | GiveUp | Subscribed | Left | Acked | Declined | CommitAsked | Heard | Withdrawn | Signalled | JobSeen | Committed
    | CommitFailed | IsFenced | Written | Requeued | RequeueRefused | Exited | Tick
)  # fmt: skip

# Actions


class Start(NamedTuple):
    """Start the program."""


class Ask(NamedTuple):
    """Send ``checkpoint.request`` to one client, or to all subscribers (None)."""

    seq: int
    urgent: bool
    deadline: float | None
    reason: str
    client: int | None = None


class Save(NamedTuple):
    """Commit: the parts of the program, if it gave any, and the state directories. One at a time."""

    seq: int | None
    step: int | None
    parts: dict[str, ObjectRef]
    reason: str
    urgent: bool
    clients: tuple[int, ...] = ()
    """Who waits for the answer."""
    asked: float | None = None
    """When the program was asked."""
    answered: float | None = None
    """When it answered."""
    carry: bool = False
    """Keep the parts of the last commit: the program is gone, only its files are newer."""


class Answer(NamedTuple):
    """Send a message to a client."""

    client: int
    message: dict[str, Any]


class QueryJob(NamedTuple):
    """Ask Slurm how this job stands; answered by ``JobSeen``."""


class WriteInterrupted(NamedTuple):
    """Put ``interrupted`` into the log; answered by ``Written``."""

    reason: str
    arrived: float
    notice: Notice | None


class WriteEnd(NamedTuple):
    """Put ``end`` into the log; answered by ``Written``."""

    code: int
    reason: str


class Requeue(NamedTuple):
    """``scontrol requeue`` for this job; answered by ``Requeued`` or ``RequeueRefused``."""


class Stop(NamedTuple):
    """Tell the program to end: message and SIGTERM. ``fenced`` is the newer epoch, which makes it SIGKILL at once."""

    fenced: int | None = None


class Say(NamedTuple):
    """One line to stderr."""

    text: str


class Exit(NamedTuple):
    """Kill what is left of the program's group, and end with this code."""

    code: int


Action = Start | Ask | Save | Answer | QueryJob | WriteInterrupted | WriteEnd | Requeue | Stop | Say | Exit
