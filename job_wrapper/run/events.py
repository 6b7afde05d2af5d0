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

    ``parts``: its newest checkpoint holds parts of the program's own. ``committed_at``: when that one was made; ``since``: when the
    attempt began (Unix seconds). ``limit``: seconds that Slurm gives the job.
    """

    parts: bool = False
    committed_at: float | None = None
    since: float | None = None
    limit: float | None = None


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


class Staged(NamedTuple):
    """``checkpoint.staged``: the program goes on; its state was copied within so many seconds, and is written behind it."""

    client: int
    seq: int
    seconds: float


class Going(NamedTuple):
    """The program works: it has loaded its state (``restored``), or told how far it is."""

    restored: bool
    completed: int | None = None
    total: int | None = None


class CommitAsked(NamedTuple):
    """``checkpoint.commit``: these parts are in the store."""

    client: int
    seq: int | None
    step: int | None
    parts: dict[str, ObjectRef]


class Heard(NamedTuple):
    """A watcher saw a notice, here or on another node of this job (``peer`` is its name)."""

    notice: Notice
    peer: str = ""


class Withdrawn(NamedTuple):
    """The notice is gone from its source."""

    peer: str = ""


class PeerEnded(NamedTuple):
    """The program of another rank ended: exit code as a shell has it, and what that means."""

    rank: int
    node: str
    code: int
    reason: str


class RollCalled(NamedTuple):
    """Which nodes did not answer rank 0's call; none also where that could not be found out."""

    missing: tuple[str, ...] = ()


class HeadSeen(NamedTuple):
    """To the other ranks: how rank 0's attempt stands. ``leaving``: its last word is in the log, and it was the run's end (``ended``) or
    an interruption. ``released``: it has found that no node is lost."""

    leaving: bool = False
    ended: bool = False
    released: bool = False


class Signalled(NamedTuple):
    """SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 reached the wrapper."""

    number: int


class Asked(NamedTuple):
    """The user asks for a checkpoint, or for the job to be suspended (`asked`)."""


class JobSeen(NamedTuple):
    """Slurm's answer about this job; None: no answer, nothing may be concluded. ``lost``: nodes of the step for which Slurm has ended it."""

    view: JobView | None
    lost: tuple[str, ...] = ()


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
    """``scontrol requeue`` said yes. ``text``: what is to be said of it, where it is not the usual."""

    text: str = ""


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
    Ready | GiveUp | Subscribed | Left | Acked | Declined | Staged | Going | CommitAsked | Heard | Withdrawn | Signalled | Asked | JobSeen | Committed
    | CommitFailed | IsFenced | Written | Requeued | RequeueRefused | Exited | Tick | PeerEnded | RollCalled | HeadSeen
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
    stall: float | None = None
    """Seconds that the program stood still for it, as it told."""


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


class WriteSuspended(NamedTuple):
    """Put ``suspended`` into the log; answered by ``Written``."""

    arrived: float


class Tell(NamedTuple):
    """Tell the user who asked why there is no checkpoint."""

    error: str


class WriteEnd(NamedTuple):
    """Put ``end`` into the log; answered by ``Written``. ``arrived`` (Unix seconds) and ``notice``: of the interruption that ends the run."""

    code: int
    reason: str
    arrived: float | None = None
    notice: Notice | None = None


class Requeue(NamedTuple):
    """``scontrol requeue`` for this job, or ``requeuehold``; answered by ``Requeued`` or ``RequeueRefused``."""

    hold: bool = False
    away: bool = False
    """Because the store is away: held once that lasts too long (`outages`)."""
    leaves: tuple[str, ...] = ()
    """Nodes that go away, "" for this one (`departing`)."""


class Unhold(NamedTuple):
    """``scontrol release`` for this running job, which was marked to be held and can't be suspended."""


class Stop(NamedTuple):
    """Tell the program to end: message and SIGTERM. ``fenced`` is the newer epoch, which makes it SIGKILL at once."""

    fenced: int | None = None


class TellNotice(NamedTuple):
    """Tell rank 0 what this node has heard; None: it was withdrawn."""

    notice: Notice | None


class TellEnded(NamedTuple):
    """Tell rank 0 how this rank's program ended."""

    code: int
    reason: str


class CallRoll(NamedTuple):
    """Ask all nodes of the job whether they are there; answered by ``RollCalled``."""


class Release(NamedTuple):
    """Tell the other ranks that no node is lost, so that a failure is the program's own."""


class LookAtHead(NamedTuple):
    """See how rank 0's attempt stands; answered by ``HeadSeen``."""


class Say(NamedTuple):
    """One line to stderr."""

    text: str


class Exit(NamedTuple):
    """Kill what is left of the program's group, and end with this code."""

    code: int


Action = (
    Start | Ask | Save | Answer | QueryJob | WriteInterrupted | WriteSuspended | Tell | WriteEnd | Requeue | Stop | Say | Exit | TellNotice | TellEnded | CallRoll
    | Release | LookAtHead | Unhold
)  # fmt: skip
