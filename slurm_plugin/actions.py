"""What the manager can do: frozen values that ``reconcile`` returns and ``manager.apply`` carries out.

Each can be repeated without harm. ``order`` says what comes first within a pass: what is written down, then what frees a job from a
lost node, then what ends machines, then what makes new ones, then what makes nodes and jobs usable again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from job_wrapper.comments import OURS as OURS
from slurm_plugin.ledger_records import Charge


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write down a machine that the listing shows under a launch id whose answer was lost, or that the ledger doesn't know."""

    order: ClassVar[int] = 0
    provider: str
    launch_id: str
    instance_id: str
    node: str
    nodeset: str
    offering_id: str
    launched: float


@dataclass(frozen=True, slots=True)
class NoteRegistered:
    """Write down that a machine has become a node: what befalls it from now on is no failure to boot."""

    order: ClassVar[int] = 0
    launch_id: str
    node: str


@dataclass(frozen=True, slots=True)
class RecordNotice:
    """Write down that a machine is being reclaimed. The first time it also puts the offering's zone last."""

    order: ClassVar[int] = 0
    notice_id: str
    node: str
    launch_id: str
    offering_id: str
    deadline: float | None
    source: str
    """``agent`` (the node's drain reason) or ``cloud`` (the provider's listing)."""


@dataclass(frozen=True, slots=True)
class EndNotice:
    """The notice is ``withdrawn``, or ``over`` (its machine is gone)."""

    order: ClassVar[int] = 0
    notice_id: str
    node: str
    outcome: str


@dataclass(frozen=True, slots=True)
class RememberJob:
    """Write down where a job runs, so that its next attempt is known to be one and gets a node of the same shape."""

    order: ClassVar[int] = 0
    job_id: int
    restart_count: int
    nodeset: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """The job is no longer in Slurm's memory."""

    order: ClassVar[int] = 0
    job_id: int


@dataclass(frozen=True, slots=True)
class WaitBegins:
    """Write down that a job finds no capacity, unless that stands there already."""

    order: ClassVar[int] = 0
    job_id: int


@dataclass(frozen=True, slots=True)
class WaitEnds:
    """The job runs, or is held: it waits for capacity no longer."""

    order: ClassVar[int] = 0
    job_id: int


@dataclass(frozen=True, slots=True)
class ForgetReleases:
    """The job has run for long since it was released: what Slurm holds it for next is another matter."""

    order: ClassVar[int] = 0
    job_id: int


@dataclass(frozen=True, slots=True)
class ChargeBegins:
    """A job has a node from now on. ``price`` of its machine an hour; None: not known."""

    order: ClassVar[int] = 0
    charge: Charge
    offering_id: str
    price: float | None


@dataclass(frozen=True, slots=True)
class ChargeEnds:
    """The job has left the node."""

    order: ClassVar[int] = 0
    charge: Charge
    ended: float


NOWHERE = "255.255.255.255"
"""An address that belongs to no machine, and that connections to fail at once (RFC 919)."""


@dataclass(frozen=True, slots=True)
class SetAddress:
    """NodeAddr of a node: ``NOWHERE`` while it is off and until it has registered, whereby slurmctld learns its own.

    Without it slurmctld looks the node's name up whenever it means to tell the node something, such as that a job is over or preempted.
    No DNS knows the name of a machine that is not there; each such name holds up all of slurmctld for 10 s (22.05.8; 24.11.5 where the name
    server can't be reached). When it has powered a node down, Slurm resets the address to the name.
    """

    order: ClassVar[int] = 5
    node: str
    address: str


@dataclass(frozen=True, slots=True)
class SetDown:
    """Node to DOWN, which requeues its jobs at once. ``reason`` begins with ``OURS``; ``tell`` goes into its jobs' comments."""

    order: ClassVar[int] = 10
    node: str
    reason: str
    tell: str = ""


@dataclass(frozen=True, slots=True)
class RequeueJob:
    """``scontrol requeue`` (``hold``: requeuehold). ``counter`` names what bounds it, "" for nothing."""

    order: ClassVar[int] = 11
    job_id: int
    name_id: str
    restart_count: int
    why: str
    hold: bool = False
    counter: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """``scontrol release`` of a job that Slurm itself holds."""

    order: ClassVar[int] = 11
    job_id: int
    name_id: str
    restart_count: int
    why: str
    counter: str


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """A job that runs is to commit a checkpoint and to be held (job_wrapper.run.asked). What does not hear it goes on. ``counter`` keeps when
    it was first asked."""

    order: ClassVar[int] = 11
    job_id: int
    name_id: str
    restart_count: int
    why: str
    counter: str


@dataclass(frozen=True, slots=True)
class HoldJob:
    """``scontrol uhold`` of a job that waits: its owner can let it go."""

    order: ClassVar[int] = 11
    job_id: int
    name_id: str
    restart_count: int
    why: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """``scancel`` of a job that Slurm can't hold: it is no batch job, or was submitted with --no-requeue."""

    order: ClassVar[int] = 11
    job_id: int
    name_id: str
    restart_count: int
    why: str


@dataclass(frozen=True, slots=True)
class CancelJob:
    """``scancel`` of a job that still waits; its comment says why. ``reason`` is typed (DESIGN §5)."""

    order: ClassVar[int] = 11
    job_id: int
    name_id: str
    restart_count: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Node to DRAIN: its jobs go on, no new ones start."""

    order: ClassVar[int] = 12
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class PowerUp:
    """Boot a node ahead for a job that will come back (make before break)."""

    order: ClassVar[int] = 20
    node: str
    job_id: int
    name_id: str
    restart_count: int
    because: str


@dataclass(frozen=True, slots=True)
class KeepIdle:
    """An idle node is told that it is idle, from which on Slurm counts its SuspendTime anew (src/slurmctld/node_mgr.c of 22.05 to 25.11).

    A drain that was set within this pass goes with it. On such a node, whoever starts there finds the notice in its file.
    """

    order: ClassVar[int] = 20
    node: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """End a machine. Its intent is retired first. ``blame`` cools its offering: it was made and never became a node."""

    order: ClassVar[int] = 30
    provider: str
    instance_id: str
    launch_id: str
    node: str
    why: str
    blame: bool = False


@dataclass(frozen=True, slots=True)
class Retire:
    """The intent's machine is no longer wanted, and its instance id is not known yet (or its cloud does not answer)."""

    order: ClassVar[int] = 30
    launch_id: str
    node: str
    why: str
    blame: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """The intent's machine is gone: its node's name is free."""

    order: ClassVar[int] = 31
    launch_id: str
    node: str
    why: str
    blame: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Make a machine for a node: the first of ``offerings`` (ids) that does not refuse.

    ``launch_id`` is set where an earlier call's answer is unknown: the same id again, on the one offering it was for.
    """

    order: ClassVar[int] = 40
    node: str
    nodeset: str
    offerings: tuple[str, ...]
    launch_id: str | None = None
    gang: str | None = None
    passed: tuple[str, ...] = ()
    """Each offering that was passed over, and why, in words."""
    pins: tuple[tuple[str, str], ...] = ()
    """(offering id, zone): see ``LaunchRequest.zone``."""


@dataclass(frozen=True, slots=True)
class PowerDown:
    """Node to power_down; ``force`` also while it boots (22.05.8 lets a booting node boot first, otherwise)."""

    order: ClassVar[int] = 50
    node: str
    why: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """A node that is off and DOWN goes back to the pool (``state=resume``)."""

    order: ClassVar[int] = 51
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """Clear a drain that carries a reason of ours."""

    order: ClassVar[int] = 51
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class StartNow:
    """Clear the begin time that a requeue set: the job's nodes are up and idle."""

    order: ClassVar[int] = 60
    job_id: int
    name_id: str
    restart_count: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndReplacement:
    """A replacement is ``used``, ``released`` or ``lost``."""

    order: ClassVar[int] = 70
    job_id: int
    node: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Report:
    """Say something about a job once: an event and the job's comment. ``key`` makes it once."""

    order: ClassVar[int] = 80
    job_id: int
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class DropRequest:
    """A request of slurmctld's is done."""

    order: ClassVar[int] = 90
    path: Path


Action = (
    Adopt
    | NoteRegistered
    | RecordNotice
    | EndNotice
    | RememberJob
    | ForgetJob
    | WaitBegins
    | WaitEnds
    | ForgetReleases
    | ChargeBegins
    | ChargeEnds
    | SetAddress
    | SetDown
    | RequeueJob
    | ReleaseJob
    | CancelJob
    | SuspendJob
    | HoldJob
    | EndJob
    | Drain
    | PowerUp
    | KeepIdle
    | Terminate
    | Retire
    | Close
    | Launch
    | PowerDown
    | Resume
    | Undrain
    | StartNow
    | EndReplacement
    | Report
    | DropRequest
)
