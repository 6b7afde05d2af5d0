"""Decisions that need no state: what a signal means, how long to wait for a checkpoint, what a program's end means. All pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from job_wrapper.errors import (
    CheckpointFailed,
    ConfigChanged,
    ExitCode,
    NodeLost,
    Preempted,
    RestoreFailed,
    SpotburstError,
    StoreAway,
    StoreRefused,
)
from job_wrapper.interval import USUAL_RATES
from job_wrapper.notice.types import TAKES_AWAY as TAKES_AWAY
from job_wrapper.notice.types import TAKES_NODE as TAKES_NODE
from job_wrapper.notice.types import Notice
from job_wrapper.slurm_job import JobView

NO_DEADLINE = 20.0
"""Seconds given to a checkpoint when nobody tells a deadline: below Slurm's default KillWait (30 s)."""

SHORTEST = 4.0
"""Seconds given to a checkpoint even where the deadline has passed already (AWS: hibernation comes without lead)."""

MAX_SIZE = 1 << 40
"""Default of --max-size in bytes."""


ENDED = "the job was ended"
"""Reason in the log of an attempt whose job was cancelled, or had no time left."""

ASK_SLURM_AGAIN = 1.0
VERDICT_WAIT = 10.0
"""How long a program that has committed is held while Slurm does not say whether the job goes away."""
WRITE_WAIT = 5.0
"""How long a requeue waits for its ``interrupted`` entry."""
STORE_PATIENCE = 1800.0
"""Default of --store-patience: how long a store that is away is waited for where work would be lost otherwise."""
STOP_WAIT = 2.0
"""How long a program may take to end after ``stop`` where the job is over anyway."""
STRANDED_WAIT = 60.0
"""How long past the deadline a job that Slurm won't requeue is kept alive."""


PROGRAM_FAILED, KILLED, OUT_OF_MEMORY = "ProgramFailed", "ProgramKilled", "OutOfMemory"
"""Reasons: the program ended by itself with a failure, was killed from outside, or had a process killed by the kernel for memory."""
FINISHED = "finished"
"""Reason of the last save of a program that has ended by itself."""
ON_INTERRUPTION, FAIL = "on_interruption", "fail"
"""Key and value in the log entries of a run that nobody is to bring back (``--on-interruption fail``)."""


class Phase(Enum):
    """Where the attempt stands."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    LEAVING = "leaving"
    OVER = "over"


class Verdict(Enum):
    """What an interruption leads to."""

    UNKNOWN = "unknown"
    """Slurm has not said yet."""
    REQUEUE = "requeue"
    """Commit, then bring the job back."""
    LEAVE = "leave"
    """Commit, then end: the job is over, or Slurm itself brings it back."""
    SUSPEND = "suspend"
    """Commit, then have the job held; without a commit it goes on."""
    GO_ON = "go on"
    """Commit, and go on: a user's own signal."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the machine is told at the start and never changes. Seconds."""

    interval: float = 600.0
    """0: chosen as the attempt goes on (`pace`)."""
    rate: float = USUAL_RATES["spot"]
    """Interruptions an hour of the whole job."""
    state_dirs: bool = False
    in_slurm: bool = True
    requeue: bool = True
    """``--on-interruption requeue``."""
    commits: bool = True
    """This rank commits (rank 0)."""
    peers: bool = False
    """The step has tasks on several nodes, whose wrappers tell each other (`gang`)."""
    restart_count: int = 0
    patience: float = STORE_PATIENCE
    """``--store-patience``: also how long the wrapper of a finished program tries to commit its last files and to log its end."""
    counters: bool = False
    """``--continuity restartable``: checkpoints hold the progress counters, and nobody is asked for them."""


@dataclass(slots=True)
class Interruption:
    """Why this attempt may have to end."""

    reason: str
    arrived: float
    verdict: Verdict
    deadline: float | None = None
    notice: Notice | None = None
    number: int | None = None
    """The signal, if it was one."""
    code: int = 128 + signal.SIGTERM
    """Exit code of the wrapper if it leaves."""

    @property
    def ends_here(self) -> bool:
        """This attempt won't go on."""
        return self.verdict in (Verdict.REQUEUE, Verdict.LEAVE, Verdict.SUSPEND)

    def answer_by(self, last_commit: float) -> float:
        """When to stop waiting for the program: early enough to commit what there is without it."""
        if self.deadline is None:
            return self.arrived + NO_DEADLINE
        window = max(SHORTEST, self.deadline - self.arrived)
        return self.arrived + window - min(max(10.0, 2 * last_commit + 5.0), window / 2)

    def leave_by(self) -> float:
        """When to leave without a checkpoint that is still being committed: the requeue must be through before the end."""
        if self.deadline is None:
            return self.arrived + NO_DEADLINE + 5.0
        window = max(SHORTEST, self.deadline - self.arrived)
        return self.arrived + window - min(5.0, window / 4)


def judge_signal(view: JobView, rules: Rules) -> tuple[Verdict, str, float | None]:
    """What a signal meant, from how Slurm shows the job: the verdict, a reason for people, and a deadline.

    Slurm sets the job's state and PreemptTime before it sends the signal. At preemption it lowers EndTime to the end of the
    grace, and a requeue clears PreemptTime (seen on 22.05.8 and 24.11.5). One from before the start is that of a job preempted while it
    was CONFIGURING: Slurm has forgotten it, and the manager requeues the job (SLURM_FACTS R29).
    """
    if view.restart_count > rules.restart_count:
        return Verdict.LEAVE, "requeued", None
    if view.running:
        if view.preempt_time is not None and view.preempt_time >= (view.start_time or 0.0):
            return Verdict.REQUEUE, "preempted", view.end_time
        return Verdict.GO_ON, "signal", None
    if view.coming_back:
        return Verdict.LEAVE, "requeued", None
    # While it is taken down squeue shows no more than that, be it scancel, the time limit or anything else; a requeue shows by its count.
    return Verdict.LEAVE, ENDED if view.state == "COMPLETING" else view.state.lower(), None


def ended_code(view: JobView, rules: Rules, number: int | None) -> int:
    """The wrapper's exit code when it leaves a job that Slurm is taking down."""
    if view.restart_count > rules.restart_count or view.coming_back:
        return int(ExitCode.REQUEUED)
    return 128 + (number or signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Finished:
    """The program's own end: goes into the log as ``end``."""

    code: int
    reason: str


def judge_exit(status: int, oom: bool) -> Finished | None:
    """What the program's end means; None: it was killed from outside (SIGKILL without the kernel's out-of-memory).

    ``status`` as Python gives it: the exit code, or minus the signal. ``oom``: the kernel has killed for memory in the job's cgroup while it
    ran. It seldom kills the program itself: a shell tells its child's end as 137, a loader whose worker is gone raises.
    """
    if status == 0:
        return Finished(0, "Finished")
    if status == -signal.SIGKILL and not oom:
        return None
    failed = OUT_OF_MEMORY if oom else PROGRAM_FAILED
    return Finished(128 - status, failed) if status < 0 else Finished(status, _REASONS.get(status, failed))


def judge_fail(interruption: Interruption, rules: Rules) -> Finished | None:
    """How the run ends where ``--on-interruption fail`` was given; None: it stays open, since Slurm or its user ends this attempt, or the
    store is away, or nobody was to bring it back anyway.
    """
    if not rules.in_slurm or rules.requeue or interruption.verdict is not Verdict.LEAVE:
        return None
    if interruption.reason == KILLED:
        return Finished(interruption.code, KILLED)
    if interruption.code != ExitCode.PREEMPTED:
        return None
    lost = NodeLost if interruption.reason == NodeLost.reason else Preempted
    return Finished(int(lost.exit_code), lost.reason)


_KINDS: tuple[type[SpotburstError], ...] = (RestoreFailed, ConfigChanged, CheckpointFailed, StoreAway, StoreRefused)
_REASONS = {int(kind.exit_code): kind.reason for kind in _KINDS}
"""Our own errors, raised inside the program by ``job_wrapper.checkpoint``, keep their names."""
