"""A run's log as people want to see it: its attempts, why each ended, what was lost, and how long each way took. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from job_wrapper.run.options import EPHEMERAL
from job_wrapper.store import told
from job_wrapper.store.freeing import is_freed
from job_wrapper.store.io_types import Entry, Kind


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. Times are Unix seconds, None where the log does not tell.

    ``lost_steps`` counts the steps that the next attempt had to do again, as far as progress was reported; None if unknown.
    """

    epoch: int
    job_id: str
    restart_count: int
    node: str
    offering: str
    started: float
    claimed: float
    resumed: float | None
    """The program had its checkpoint loaded, or told its first progress."""
    restored_step: int | None
    commits: int
    first_step: int | None
    last_step: int | None
    last_commit: float | None
    noticed: float | None
    """When the notice or the signal that ended it arrived."""
    urgent_commit: float | None
    ended: float | None
    """When the log says that it ended; None while it lives, or when it vanished."""
    why: str
    """``running``, ``lost`` (nothing in the log says how it ended), or the reason in the log."""
    exit_code: int | None
    machines: int = 1
    """Nodes of its job; 1 where an older wrapper did not tell."""

    @property
    def notice_to_commit(self) -> float | None:
        """Seconds."""
        if self.noticed is None or self.urgent_commit is None:
            return None
        return self.urgent_commit - self.noticed


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two attempts, in seconds: from the notice (or the last sign of life) to the next attempt."""

    notice_to_requeue: float | None
    notice_to_claim: float | None
    notice_to_resumed: float | None
    repeated_from: int | None
    """The step at which the next attempt went on."""


def attempts(entries: Sequence[Entry]) -> list[Attempt]:
    """All attempts of a run, oldest first, from its whole log."""
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        if is_freed(entry):
            continue  # no attempt of the run's own
        groups.setdefault(entry.epoch, []).append(entry)
    newest = max(groups, default=0)
    return [_attempt(group, epoch == newest) for epoch, group in sorted(groups.items())]


def _attempt(group: list[Entry], newest: bool) -> Attempt:
    claim = group[0]
    resumed = [at for e in group if (at := told.seconds(e.body.get("resumed_at"))) is not None]
    restored = [step for e in group if (step := told.whole(e.body.get("restored_step"))) is not None]
    commits = [e for e in group if e.kind is Kind.COMMIT]
    urgent = next((e for e in reversed(commits) if e.body.get("urgent")), None)
    last = group[-1]
    over = last.kind in (Kind.INTERRUPTED, Kind.SUSPENDED, Kind.END)
    if last.kind is Kind.SUSPENDED:
        why = "suspended"
    elif over:
        why = str(last.body.get("reason") or last.kind.value)
        if last.kind is Kind.END and last.body.get("exit_code") == 0:
            why = "finished"
    else:
        why = "running" if newest else "lost"
    arrived = told.seconds(last.body.get("arrived"))
    steps = [step for e in commits if (step := told.whole(e.body.get("step"))) is not None]
    return Attempt(
        epoch=claim.epoch,
        job_id=claim.writer.job_id,
        restart_count=claim.writer.restart_count,
        node=str(claim.body.get("node") or claim.writer.host),
        offering=str(claim.body.get("offering") or ""),
        started=told.seconds(claim.body.get("started_at")) or claim.time,
        claimed=claim.time,
        resumed=resumed[0] if resumed else None,
        restored_step=restored[0] if restored else _given(claim, last),
        commits=len(commits),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        last_commit=commits[-1].time if commits else None,
        noticed=arrived,
        urgent_commit=urgent.time if urgent is not None and arrived is not None else None,
        ended=last.time if over else None,
        why=why,
        exit_code=told.whole(last.body.get("exit_code")) if last.kind is Kind.END else None,
        machines=max(1, told.whole(claim.body.get("machines")) or 1),
    )


def _given(claim: Entry, last: Entry) -> int | None:
    """The step that an attempt is given to go on from, before it has told so itself: the newest commit that did not fail to restore."""
    if claim.body.get("continuity") == EPHEMERAL:
        return None
    good = [c for c in claim.summary.commits if not last.summary.failed_restores.get(c.seq)]
    return good[-1].step if good else None


def gap(before: Attempt, after: Attempt) -> Gap:
    """How long the run stood still between two attempts."""
    start = before.noticed if before.noticed is not None else before.last_commit

    def since(moment: float | None) -> float | None:
        return None if start is None or moment is None else max(0.0, moment - start)

    return Gap(since(before.ended), since(after.claimed), since(after.resumed), after.restored_step)
