"""What to do about a job that has ended: leave it, bring it back, hold it, or say why it is not brought back. Pure.

Slurm ends a job whose wrapper was killed as FAILED and does not bring it back. The run's log tells the difference between that and a
program that ended by itself: the wrapper writes ``end`` (or ``interrupted``, ``suspended``) before it goes.

    the job                                  the run's newest entry                   decision
    ---------------------------------------  ---------------------------------------  ------------------------------------------
    CANCELLED, TIMEOUT, DEADLINE, …          any                                      Continue: somebody's or Slurm's own decision
    no run in the store                      -                                        Continue: not ours
    OUT_OF_MEMORY                            any                                      Fail: Slurm's word for it
    any                                      end, by this attempt                     Fail with its reason; Continue: it succeeded
    exit code of the wrapper's own           any                                      Fail: it gave up, typed (job_wrapper.errors)
    any                                      suspended, by this attempt               Hold: it was to be held
    no batch job, --no-requeue, or           interrupted, or open, by this attempt    Fail: Preempted, NodeLost or WrapperLost
    --on-interruption fail
    any                                      interrupted, by this attempt             Requeue: it died before ``scontrol requeue``
    any                                      claim/commit/restore_failed, this one    Requeue: the wrapper was killed (bounded)
    FAILED, restart count > 0, short-lived   an earlier attempt's, not ended          Requeue: it never started (SLURM_FACTS R1)
    the same, its PreemptTime not cleared    none by this attempt                     Requeue: Slurm refused its steps (``refused``)
    the same, ended by a warning             none by this attempt                     Requeue: it was meant for another (``warned``)
    any                                      another attempt's                        Continue: a newer attempt holds the run

Bounds are those that the next claim would meet (job_wrapper.run.bounds): there is no use in bringing back a job to be told so. A ``Fail``
changes nothing; it puts the reason where users look, into ``describe``. (The job's comment is the wrapper's to write: Slurm takes none of a
job that has ended.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from job_wrapper.counted import counted
from job_wrapper.errors import (
    ConfigChanged,
    ExitCode,
    MaxAttempts,
    NodeLost,
    NoProgress,
    NotRequeueable,
    Preempted,
    RestoreFailed,
    RunHeld,
    SpotburstError,
    StoreRefused,
)
from job_wrapper.reasons import WORDS, said
from job_wrapper.run.counters import counters_of
from job_wrapper.run.rules import FAIL, ON_INTERRUPTION, OUT_OF_MEMORY, PROGRAM_FAILED
from job_wrapper.run.signals import IGNORED
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.slurm.records import Job

NEVER_STARTED = 30.0
"""Seconds: an attempt that ended this soon, and never claimed its run, was refused by Slurm rather than failed by itself."""
MAX_NEVER_STARTED = 3
"""How often one job is brought back for that."""
NO_MEMORY = "OUT_OF_MEMORY"
LOST_STATES = ("FAILED", "NODE_FAIL", "BOOT_FAIL", "COMPLETED", "PREEMPTED", "LAUNCH_FAILED")
"""End states in which a killed wrapper's job can be found. COMPLETED: the script went on after the wrapper was killed."""
ENDED_STATES = (*LOST_STATES, "CANCELLED", "TIMEOUT", "DEADLINE", NO_MEMORY, "SPECIAL_EXIT", "REVOKED")


_KINDS: tuple[type[SpotburstError], ...] = (
    StoreRefused, RunHeld, RestoreFailed, NoProgress, MaxAttempts, ConfigChanged, NotRequeueable, Preempted, NodeLost,
)  # fmt: skip
_GAVE_UP = {int(kind.exit_code): kind.reason for kind in _KINDS} | {
    int(ExitCode.FENCED): "Fenced",
    int(ExitCode.CHECKPOINT_FAILED): "CheckpointFailed",
}
"""Exit codes with which a wrapper ends a job for good, where its log tells no more."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Leave it alone."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Bring it back. ``counter`` bounds it where the run's log can't."""

    reason: str
    text: str
    counter: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Bring it back, held."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Don't bring it back, and say why. ``reason`` is typed (job_wrapper.errors)."""

    reason: str
    text: str


Decision = Continue | Requeue | Hold | Fail


@dataclass(frozen=True, slots=True)
class Limits:
    """``recovery`` of burst.yaml."""

    max_attempts: int = 8
    max_attempts_multi_node: int = 3
    barren_attempts: int = 2


@dataclass(frozen=True, slots=True)
class RunTail:
    """The newest entry of one run, as far as this decision needs it."""

    run: str
    kind: Kind
    job_id: str
    restart_count: int
    recoveries: int
    barren: int
    committed: bool
    """Whether its epoch made a commit."""
    reason: str = ""
    left: float | None = None
    """Share of the work still to be done, by the counters that the program told; None if it told none."""
    exit_code: int = 0
    """Of an ``end``."""
    fails: bool = False
    """It was run with ``--on-interruption fail``."""
    epoch: int = field(default=0, compare=False)
    """Of the newest entry: told in logs, and nothing is decided by it."""
    time: float = field(default=0.0, compare=False)
    """When the newest entry was made, in Unix seconds by the node's clock."""

    @classmethod
    def of(cls, run: str, entry: Entry) -> RunTail:
        """From the log's newest entry."""
        return cls(
            run=run,
            kind=entry.kind,
            job_id=entry.writer.job_id,
            restart_count=entry.writer.restart_count,
            recoveries=entry.summary.recoveries,
            barren=entry.summary.barren,
            committed=any(commit.epoch == entry.epoch for commit in entry.summary.commits),
            reason=str(entry.body.get("reason", "")),
            left=left_of(entry),
            exit_code=entry.summary.ended or 0,
            fails=entry.body.get(ON_INTERRUPTION) == FAIL,
            epoch=entry.epoch,
            time=entry.time,
        )


def left_of(entry: Entry) -> float | None:
    """Share of a run's work still to be done, as its newest entry tells; None if its program told none."""
    counters = counters_of(entry.body.get("progress"))
    if counters is None or not counters.total:
        return None
    return max(0.0, 1.0 - counters.completed / counters.total)


def may_need_help(job: Job) -> bool:
    """Whether the store is to be asked about this job at all: to bring it back, or to say why it ended."""
    return not job.has("PENDING", "RUNNING", "COMPLETING") and job.has(*LOST_STATES, NO_MEMORY)


FORGOTTEN = 90.0, 900.0
"""Seconds after slurmctld's start in which it is looked for: what Slurm ends is gone by then, and its nodes have told what they run."""


def may_be_forgotten(job: Job, began: float | None, now: float) -> bool:
    """Whether slurmctld, which ``began`` then, may show an attempt as running that it has ended itself: killed before it had saved that.

    Its nodes tell it that they run no such job, but not again before half an hour is over (22.05.8, 24.11.5: ``_purge_missing_jobs``
    takes a job for missing 20 s after its last sign of life, and a node that is well registers with every 20th ping).
    """
    return (
        began is not None
        and job.running
        and job.batch
        and job.requeue
        and 0 < job.start_time < began
        and FORGOTTEN[0] <= now - began <= FORGOTTEN[1]
    )


def forgotten(job: Job, runs: Sequence[RunTail], now: float) -> Decision:
    """What to do about such a job, by its wrappers' last words: bring it back, or hold it, where all of this attempt have long ended for that.

    Not where they were not to bring it back: its script may go on. Nor by words from before its start: slurmctld may have begun an attempt
    once more under the same number, whose wrapper has not claimed the run yet.
    """
    mine = [run for run in runs if run.job_id == job.name_id and run.restart_count == job.restart_count]
    ended = [
        run
        for run in mine
        if run.kind in (Kind.INTERRUPTED, Kind.SUSPENDED)
        and not run.fails
        and job.start_time <= run.time <= now - FORGOTTEN[0]
    ]
    if not mine or ended != mine:
        return Continue()
    text = "its attempt has ended, and slurmctld, killed just then, does not know it"
    return Hold("Suspended", text) if any(run.kind is Kind.SUSPENDED for run in mine) else Requeue("Forgotten", text)


def decide(job: Job, runs: Sequence[RunTail], limits: Limits, *, never_started: int = 0) -> Decision:
    """What to do about an ended job. ``never_started``: how often it was brought back for that since its last claim."""
    no_start = refused(job) or warned(job)
    if not may_need_help(job) or not (runs or no_start):
        return Continue()
    if job.has(NO_MEMORY):
        return Fail(OUT_OF_MEMORY, "Slurm ended it for want of memory; it is not tried again: ask for more (--mem)")
    mine = [tail for tail in runs if _by(job, tail) and tail.restart_count == job.restart_count]
    failed = next((tail for tail in mine if tail.kind is Kind.END and tail.exit_code), None)
    if failed is not None:
        return _gave_up(failed.reason or PROGRAM_FAILED, failed.exit_code)
    if job.exit_code in _GAVE_UP and not any(tail.kind is Kind.END for tail in mine):
        return _gave_up(_GAVE_UP[job.exit_code], job.exit_code)
    for tail in mine:
        if tail.kind is Kind.SUSPENDED:
            return Hold("Suspended", f"{tail.run} was suspended: the job is held")
    open_ = [tail for tail in mine if tail.kind is not Kind.END]
    open_.sort(key=lambda tail: tail.kind is not Kind.INTERRUPTED)
    if open_ and not (job.batch and job.requeue and not open_[0].fails):
        return _not_brought_back(job, open_[0])
    if not (job.batch and job.requeue):
        return Continue()
    if open_:
        text = "was interrupted and not yet requeued" if open_[0].kind is Kind.INTERRUPTED else "was killed"
        what = open_[0].run if open_[0].kind is Kind.INTERRUPTED else f"the wrapper of {open_[0].run}"
        return _bounded(job, open_[0], limits, f"{what} {text}")
    earlier = [tail for tail in runs if _by(job, tail) and tail.restart_count < job.restart_count]
    waiting = [tail for tail in earlier if tail.kind is not Kind.END]  # also one that was suspended, and let go since
    if (
        (waiting or no_start)
        and not mine
        and job.has("FAILED", "LAUNCH_FAILED", "BOOT_FAIL", "NODE_FAIL")
        and _short(job)
    ):
        if never_started >= MAX_NEVER_STARTED:
            return Fail("LaunchFailed", f"its attempts ended {never_started} times before the wrapper could start")
        return Requeue(
            "NeverStarted", "the attempt ended before it could start", counter=never_started_counter(job, runs)
        )
    return Continue()


def refused(job: Job) -> bool:
    """Whether Slurm let no step of this attempt begin, because it took a preemption for this one's that an earlier attempt had met.

    A job that is preempted while its node boots, and requeued at the end of its grace, keeps its PreemptTime (any other requeue clears it).
    Once it has a node again, its srun gets "Job/step already completing or completed", and Slurm shows the job FAILED (seen on 22.05.8).
    There may be no run of it in the store: it never began.
    """
    return 0 < job.preempt_time < job.start_time and _failed_at_once(job)


def warned(job: Job) -> bool:
    """Whether one of Slurm's warnings ended this attempt as it started, by itself: before the wrapper could hear it.

    slurmctld tells again every minute what a booting node could not be told (``_queue_agent_retry``), so the signal of a preemption that an
    earlier attempt met comes to a later one (seen on 24.11.5). There may be no run of it in the store, or one that has ended: a job that
    Slurm starts once more though its run is finished.
    """
    return (job.exit_signal or job.exit_code - 128) in IGNORED and _failed_at_once(job)


def _failed_at_once(job: Job) -> bool:
    """An attempt after the first."""
    return job.restart_count > 0 and job.has("FAILED") and _short(job)


def _gave_up(reason: str, code: int) -> Fail:
    return Fail(reason, said(reason, code).removeprefix(f"{reason}: "))


def _not_brought_back(job: Job, tail: RunTail) -> Fail:
    """An interruption of a job that nobody brings back; its last commit stands."""
    why = "--on-interruption fail was given" if job.batch and job.requeue else "Slurm may not requeue it"
    if tail.kind is Kind.INTERRUPTED or job.has("PREEMPTED"):
        return Fail(Preempted.reason, f"{WORDS[Preempted.reason]}, and {why}")
    if job.has("NODE_FAIL", "BOOT_FAIL"):
        return Fail(NodeLost.reason, f"{WORDS[NodeLost.reason]}, and {why}")
    return Fail("WrapperLost", f"the wrapper of {tail.run} was killed, and {why}")


def never_started_counter(job: Job, runs: Sequence[RunTail]) -> str:
    """Name of the counter of attempts in a row that never started: another one after each attempt that did."""
    last = max((tail.restart_count for tail in runs if _by(job, tail)), default=0)
    return f"never-started-after-{last}"


def _by(job: Job, tail: RunTail) -> bool:
    return tail.job_id in (str(job.job_id), job.name_id)


def _short(job: Job) -> bool:
    return job.end_time - job.start_time <= NEVER_STARTED


def _bounded(job: Job, tail: RunTail, limits: Limits, text: str) -> Decision:
    bound = limits.max_attempts_multi_node if job.node_count > 1 else limits.max_attempts
    barren = 0 if tail.committed else tail.barren + 1
    if barren >= limits.barren_attempts:
        return Fail(
            "NoProgress", f"{text}; {counted(barren, 'attempt')} in a row made no checkpoint, so it is not brought back"
        )
    if tail.recoveries + 1 > bound:
        return Fail(
            "MaxAttempts", f"{text}; it was brought back {counted(tail.recoveries, 'time')}, which is the bound"
        )
    return Requeue("WrapperLost", text)
