"""A run's log and Slurm's view of its job, told for people: what happened, and what happens next. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from job_wrapper.comments import OURS
from job_wrapper.counted import counted
from job_wrapper.interval import UNMEASURED, Interval
from job_wrapper.run.asked import ASKED
from job_wrapper.run.identity import LOCAL
from job_wrapper.store import told
from job_wrapper.store.freeing import DELETED, is_freed
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.cli.exits import meaning
from slurm_plugin.cli.output import duration, moment
from slurm_plugin.reconcile.jobs import CAPACITY_UNAVAILABLE
from slurm_plugin.slurm.records import Job
from slurm_plugin.timeline import Attempt

_OVER = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "DEADLINE",
    "BOOT_FAIL",
    "NODE_FAIL",
    "PREEMPTED",
}
_WAITS = {
    "BeginTime": "waits for its begin time; the manager clears the one that a requeue sets as soon as a node is ready",
    "Resources": "waits for a free node",
    "Priority": "waits behind jobs of higher priority",
    "Dependency": "waits for another job",
    "BadConstraints": "can't be scheduled as it asks (BadConstraints): see `scontrol show job`",
    "JobHeldUser": "is held: `spotburst resume` (or scontrol release) lets it go on",
    "JobHeldAdmin": "is held by an administrator",
    "job_requeued_in_held_state": "was requeued and held: `spotburst resume` (or scontrol release) lets it go on",
    "JobHoldMaxRequeue": "is held by Slurm after too many failed launches: scontrol release lets it go on",
    "launch_failed_requeued_held": "is held by Slurm after a failed launch: scontrol release lets it go on",
}


def lost_steps(before: Attempt, after: Attempt | None) -> int | None:
    """Steps that ``after`` had to do again, as far as the log tells: 0 after an attempt that committed at its notice."""
    if after is None or before.noticed is None or before.last_step is None or not before.commits:
        return None
    if before.urgent_commit is None:
        return None
    return max(0, before.last_step - (after.restored_step or 0)) if after.resumed is not None else None


def interval(entries: Sequence[Entry]) -> Interval | None:
    """The interval between checkpoints that was in force at the newest commit, and why; None before the first, and once the run has ended."""
    if entries and entries[-1].kind is Kind.END:
        return None
    for entry in reversed(entries):
        pace = entry.body.get("interval")
        if isinstance(pace, dict) and (seconds := told.seconds(pace.get("seconds"))) is not None:
            why = str(pace.get("why") or "no reason given")
            return Interval(seconds, why.replace(UNMEASURED, _measured(entry)))
    return None


def _measured(entry: Entry) -> str:
    """An entry is written before its own save has been measured: in place of "no save measured yet"."""
    if entry.body.get("urgent") or entry.body.get("requested_at") is None:
        return "how long a save takes is not known yet, since only the ones at the interval are timed"
    seconds = told.seconds(entry.body.get("seconds"))
    took = f", which took {duration(seconds)}" if seconds is not None else ""
    return f"until the attempt's first save{took}; since then it goes by how long saves take"


def timeline(entries: Sequence[Entry]) -> list[tuple[float, str]]:
    """(Unix seconds, words) of all that the log tells, oldest first. Commits in a row that nobody asked for are one line."""
    found = [event for index, entry in enumerate(entries) for event in _events(entries, index, entry)]
    return sorted(_merged(found), key=lambda event: event[0])


def _events(entries: Sequence[Entry], index: int, entry: Entry) -> Iterator[tuple[float, str]]:
    body = entry.body
    if entry.kind is Kind.CLAIM:
        before = entries[index - 1] if index else None
        if before is not None and before.kind not in (Kind.INTERRUPTED, Kind.SUSPENDED, Kind.END):
            yield entry.time, f"attempt {before.epoch} was lost: the log does not say how it ended"
        where = str(body.get("node") or entry.writer.host)
        offering = f" ({body['offering']})" if body.get("offering") else ""
        yield entry.time, f"attempt {entry.epoch} starts on {where}{offering}, restart {entry.writer.restart_count}"
    resumed = told.seconds(body.get("resumed_at"))
    if resumed is not None:
        step = told.whole(body.get("restored_step"))
        yield resumed, "the program goes on" + (f" from step {step}" if step is not None else " from the start")
    arrived = told.seconds(body.get("arrived"))
    if entry.kind in (Kind.INTERRUPTED, Kind.END) and arrived is not None:
        yield arrived, _notice(body, arrived)
    if entry.kind is Kind.COMMIT:
        step = told.whole(body.get("step"))
        urgent = "urgent commit" if body.get("urgent") else "commit"
        if body.get("reason") == ASKED:
            urgent = "commit (asked for)"
        yield entry.time, urgent + (f" at step {step}" if step is not None else "")
    if entry.kind is Kind.RESTORE_FAILED:
        yield entry.time, f"the checkpoint of entry {body.get('entry')} could not be restored: {body.get('error', '')}"
    if entry.kind is Kind.INTERRUPTED:
        yield entry.time, f"attempt {entry.epoch} is interrupted: {body.get('reason', '')}"
    if entry.kind is Kind.SUSPENDED:
        yield entry.time, f"attempt {entry.epoch} ends: the run is suspended"
    if is_freed(entry):
        yield (
            entry.time,
            "its checkpoints were deleted" + (" by hand" if body.get("reason") == DELETED else ": their time was over"),
        )
    elif entry.kind is Kind.END:
        yield entry.time, f"the run ends with exit code {body.get('exit_code')}: {body.get('reason', '')}"


def _notice(body: dict[str, Any], arrived: float) -> str:
    notice = body.get("notice")
    if not isinstance(notice, dict):
        return f"notice: {body.get('reason', '')}"
    deadline = told.seconds(notice.get("deadline"))
    left = duration(deadline - arrived) if deadline is not None else None
    return f"notice: {notice.get('provider', '')} {notice.get('kind', '')}" + (f", {left} ahead" if left else "")


def _merged(events: list[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    run: list[tuple[float, str]] = []
    for event in [*events, (0.0, "")]:
        if event[1].startswith("commit"):
            run.append(event)
            continue
        if len(run) > 2:
            yield run[0]
            yield run[-1][0], f"… {run[-1][1]}, the last of {len(run)}"
        else:
            yield from run
        run = []
        if event[1]:
            yield event


def state(job: Job | None, slurm_error: str | None, entries: Sequence[Entry]) -> str:
    """One line: what the job and its run are now."""
    last = entries[-1] if entries else None
    unknown = "unknown to Slurm" if slurm_error is None else f"unknown, Slurm can't be asked ({slurm_error})"
    if job is None and ran_outside_slurm(last):
        unknown = "started outside Slurm"
    words = "+".join(sorted(job.states)) if job is not None else unknown
    if job is not None and job.has("PENDING") and job.reason not in ("", "None"):
        words += f" ({job.reason})"
    if last is None:
        return f"{words}; no attempt yet"
    if is_freed(last):
        return f"{words}; the run's checkpoints were deleted"
    if last.summary.ended is not None:
        return f"{words}; the run ended with exit code {last.summary.ended}"
    return f"{words}; attempt {last.epoch}, {counted(last.summary.recoveries, 'recovery', 'recoveries')}"


def outlook(
    job: Job | None, slurm_error: str | None, entries: Sequence[Entry], run: str | None, now: float | None = None
) -> str:
    """What happens next, and why. ``run`` is the path of the run whose ``entries`` these are."""
    last = entries[-1] if entries else None
    if last is not None and last.summary.ended == 0:
        return "nothing: the run has finished. Started again it exits at once"
    if last is not None and last.summary.ended is not None:
        return f"nothing by itself: the run ended with {last.body.get('reason') or 'an error'}. {by_hand(last, run)}"
    if job is not None and last is not None and _gone_on_by_another(job, last):
        other = last.writer.job_id
        return f"nothing: job {other} goes on with this run (`spotburst describe {other}`)"
    if job is None and last is not None and ran_outside_slurm(last):
        unless = "" if last.kind is Kind.INTERRUPTED else "runs on, if its process has not ended. Else "
        return f"{unless}nothing by itself: the same `spotburst run` again goes on from {'the last checkpoint' if last.summary.commits else 'the start'}"
    if slurm_error is not None:
        return "not known, since Slurm can't be asked"
    if job is None:
        return f"nothing by itself: Slurm does not know the job any more. {by_hand(last, run)}"
    if job.has("COMPLETING"):
        return "the attempt that ran is ending; then Slurm decides"
    if job.has("CONFIGURING"):
        return f"waits for {', '.join(job.nodes) or 'its nodes'} to boot"
    if job.has("SUSPENDED"):
        return "suspended: goes on with scontrol resume"
    if job.running:
        return _running(job, last)
    if job.has("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        return _pending(job, last, now)
    if job.has(*_OVER):
        told = job.comment.rpartition(OURS)[2]
        if job.has("CANCELLED") and told.startswith(CAPACITY_UNAVAILABLE):
            return f"nothing by itself: the manager cancelled the job while it waited: {told.partition(';')[0]}. {by_hand(last, run)}"
        word, why = sorted(job.states & _OVER)[0], meaning(job.exit_code)
        if why is not None:
            word += f", exit code {job.exit_code}: {why}"
        elif last is None and (refused := _refused(job)):
            word += f", and `spotburst run` had given up in it: {refused}"
        return f"nothing by itself: Slurm ended the job ({word}). {by_hand(last, run)}"
    return f"not known: Slurm shows {'+'.join(sorted(job.states))}"


def _gone_on_by_another(job: Job, last: Entry) -> bool:
    return last.writer.job_id != job.name_id and not ran_outside_slurm(last) and not is_freed(last)


def ran_outside_slurm(last: Entry | None) -> bool:
    """Whether who wrote a run's newest entry was no Slurm job."""
    return last is not None and not is_freed(last) and outside_slurm(last.writer.job_id)


def outside_slurm(job_id: str) -> bool:
    """By the name that stands for a job's id there: of the wrapper's process, or of a program that has no wrapper."""
    return re.match(rf"({LOCAL}|\d+)-", job_id) is not None


def _running(job: Job, last: Entry | None) -> str:
    if job.preempt_time:
        return f"is being preempted since {moment(job.preempt_time)}: commits, and comes back on other capacity"
    if last is None and (refused := _refused(job)):
        return f"runs on, but `spotburst run` has given up in it: {refused}"
    if last is None:
        return "runs, and has not reached `spotburst run` yet, or keeps its checkpoints elsewhere (then give --uri)"
    if last.kind in (Kind.INTERRUPTED, Kind.SUSPENDED) and last.writer.restart_count < job.restart_count:
        return "its next attempt has begun, and has not reached `spotburst run` yet"
    if last.kind is Kind.INTERRUPTED:
        return f"is being brought back: {last.body.get('reason', '')}"
    if last.kind is Kind.SUSPENDED:
        return "is being suspended: its nodes are free in a moment"
    if job.priority == 0 and job.reason.startswith("JobHeld"):
        return f"is held once it is requeued (scontrol hold): `spotburst resume {job.name_id}` takes that back"
    return "runs on; commits at its interval, and at once when its capacity is taken away"


def _refused(job: Job) -> str | None:
    """Why a wrapper that never claimed the run ended, such as one whose place of checkpoints can't be used: by the job's comment."""
    found = re.match(r"\w+: .*?\(exit code \d+\)", job.comment.rpartition(OURS)[2]) if OURS in job.comment else None
    return None if found is None else found[0]


def _pending(job: Job, last: Entry | None, now: float | None) -> str:
    if job.priority == 0 and last is not None and last.kind is Kind.SUSPENDED:
        return f"is suspended: `spotburst resume {job.name_id}` (or scontrol release) lets it go on"
    if job.reason == "BeginTime" and job.eligible_time > (time.time() if now is None else now):
        return f"{_WAITS['BeginTime']} (set to {moment(job.eligible_time)})"
    if job.priority == 0 and not job.reason.startswith(("JobHeld", "job_requeued", "JobHold", "launch_failed")):
        return f"is held: `spotburst resume {job.name_id}` (or scontrol release) lets it go on"
    return _WAITS.get(job.reason.replace(" ", "_"), f"waits for Slurm to start it: {job.reason or 'no reason given'}")


def by_hand(last: Entry | None, run: str | None) -> str:
    """How a new job goes on from the run with this newest entry."""
    if run is None or last is None or not last.summary.commits:
        return "There is no checkpoint to go on from"
    newest = last.summary.commits[-1]
    at = f"step {newest.step}" if newest.step is not None else f"entry {newest.seq}"
    _, known_as, name = run.split("/")
    options = f"--run {known_as}" + ("" if name == "main" else f" --name {name}")
    return f"The checkpoint of {at} stands: a new job with `spotburst run {options} …` goes on from it"
