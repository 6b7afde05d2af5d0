"""A store that stays away over a job's attempts: since when is kept in the job's comment, and after a day the job is held.

Nothing is lost by it: the run's log and its last commit are where the store is, and the job goes on from there once it is released.
"""

from __future__ import annotations

import time
from typing import Protocol

from job_wrapper.comments import away_since, with_away, without_marks

BOUND = 86400.0
"""Seconds for which a job is brought back without having found its store."""


class CommentedJob(Protocol):
    """What is needed of `SlurmJob`."""

    job_id: str

    def comment(self) -> str | None:
        """The job's comment; None where Slurm does not answer."""
        ...

    def set_comment(self, comment: str) -> None:
        """Replace it. What fails is passed over."""
        ...

    def requeue(self, *, hold: bool = False) -> str:
        """ "" for done, otherwise Slurm's words."""
        ...


def is_over(since: float, now: float) -> bool:
    """Whether a job that has been without its store since then is brought back no more. Pure."""
    return now - since >= BOUND


def requeue(job: CommentedJob, found: bool, began: float, now: float) -> tuple[str, str]:
    """Requeue a job whose store is away; after ``BOUND`` have it held.

    ``found``: this attempt has had its store, so that it is away since ``now`` at the most; else since ``began``, when the attempt began
    (Unix seconds), or since what an earlier one wrote down. Returns Slurm's words, "" for done, and what is to be said.
    """
    standing = job.comment()
    since = now if found else min(began, (away_since(standing) if standing is not None else None) or began)
    hold = is_over(since, now)
    text = "StoreAway: requeued until it is back"
    if hold:
        text = f"StoreAway: held after {BOUND / 3600:.0f} h, nothing is lost; scontrol release {job.job_id} once it is back"
    if standing is not None:
        job.set_comment(with_away(standing, since, text))
    words = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since))
    return (
        job.requeue(hold=hold),
        f"the store is away since {words}: the job is held, `scontrol release {job.job_id}` lets it go on"
        if hold
        else "",
    )


def clear(job: CommentedJob) -> None:
    """An attempt has begun, with its store: what our part of the comment says, of the attempts before, their nodes and the store, is over."""
    standing = job.comment()
    if standing is not None and (own := without_marks(standing)) != standing:
        job.set_comment(own)
