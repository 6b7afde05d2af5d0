"""What can happen to the wrapper, and what it can do: plain values between `machine` (decides) and `loop` (acts)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from job_wrapper.notice.types import Notice
from job_wrapper.slurm_job import JobView
from job_wrapper.store.io_types import ObjectRef

# Events


@dataclass(frozen=True, slots=True)
class Ready:
    """The run is claimed and the state directories are restored: the program may start."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This attempt can't go on: the claim was refused, a bound is reached, nothing can be restored.

    ``write``: ``end`` is still to be put into the log.
    """

    code: int
    reason: str
    text: str
    write: bool = False


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A program will answer requests."""

    client: int


@dataclass(frozen=True, slots=True)
class Left:
    """A connection is closed."""

    client: int


@dataclass(frozen=True, slots=True)
class Acked:
    """``checkpoint.ack``: the state directories are consistent."""

    client: int
    seq: int


@dataclass(frozen=True, slots=True)
class Declined:
    """``checkpoint.failed`` from the program."""

    client: int
    seq: int
    error: str


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """``checkpoint.commit``: these parts are in the store."""

    client: int
    seq: int | None
    step: int | None
    parts: dict[str, ObjectRef]


@dataclass(frozen=True, slots=True)
class Heard:
    """A watcher saw a notice."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The notice is gone from its source."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 reached the wrapper."""

    number: int


@dataclass(frozen=True, slots=True)
class JobSeen:
    """Slurm's answer about this job; None: no answer, nothing may be concluded."""

    view: JobView | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit in flight is in the log."""

    entry: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The commit in flight was not made. ``again``: the store failed, the same may work later."""

    error: str
    again: bool


@dataclass(frozen=True, slots=True)
class IsFenced:
    """A newer epoch holds the run."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Written:
    """The last ``interrupted`` or ``end`` entry is in the log, or can't be (``error``)."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Requeued:
    """``scontrol requeue`` said yes."""


@dataclass(frozen=True, slots=True)
class RequeueRefused:
    """It did not; in Slurm's words."""

    text: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended: exit code, or minus the signal. ``oom``: the kernel killed for memory while it ran."""

    status: int
    oom: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """``machine.wake`` has come."""


Event = (
    Ready | GiveUp | Subscribed | Left | Acked | Declined | CommitAsked | Heard | Withdrawn | Signalled | JobSeen | Committed
    | CommitFailed | IsFenced | Written | Requeued | RequeueRefused | Exited | Tick
)  # fmt: skip

# Actions


@dataclass(frozen=True, slots=True)
class Start:
    """Start the program."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send ``checkpoint.request`` to one client, or to all subscribers (None)."""

    seq: int
    urgent: bool
    deadline: float | None
    reason: str
    client: int | None = None


@dataclass(frozen=True, slots=True)
class Save:
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


@dataclass(frozen=True, slots=True)
class Answer:
    """Send a message to a client."""

    client: int
    message: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryJob:
    """Ask Slurm how this job stands; answered by ``JobSeen``."""


@dataclass(frozen=True, slots=True)
class WriteInterrupted:
    """Put ``interrupted`` into the log; answered by ``Written``."""

    reason: str
    arrived: float
    notice: Notice | None


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """Put ``end`` into the log; answered by ``Written``."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """``scontrol requeue`` for this job; answered by ``Requeued`` or ``RequeueRefused``."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the program to end: message and SIGTERM. ``fenced`` is the newer epoch, which makes it SIGKILL at once."""

    fenced: int | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """One line to stderr."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    """Kill what is left of the program's group, and end with this code."""

    code: int


Action = Start | Ask | Save | Answer | QueryJob | WriteInterrupted | WriteEnd | Requeue | Stop | Say | Exit
