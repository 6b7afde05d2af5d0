"""Slurm's own notice for a program that no grace signal reaches: the job's PreemptTime.

At the start of GraceTime Slurm signals every step but never the batch shell (src: KILL_STEPS_ONLY; seen on 22.05.8, 24.11.5, 25.11.7).
A wrapper in a batch step therefore looks by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from job_wrapper.notice.types import Notice
from job_wrapper.slurm_job import JobView


def preemption(view: JobView, restart_count: int, now: float) -> Notice | None:
    """The notice that a job's record tells, or None. Pure."""
    if view.restart_count != restart_count or not view.running:
        return None
    if view.preempt_time is None or view.preempt_time < (view.start_time or 0.0):
        return None
    return Notice("slurm", "preempt", f"preempt@{view.preempt_time:.0f}", now, view.end_time, "preempted")


class PreemptWatcher:
    """Looks at the job every ``interval`` seconds: one squeue of some milliseconds."""

    def __init__(
        self,
        view: Callable[[], JobView | None],
        restart_count: int,
        *,
        interval: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._view = view
        self._restart_count = restart_count
        self._interval = interval
        self._clock = clock

    def watch(self, emit: Callable[[Notice | None], None], stopped: Callable[[float], bool]) -> None:
        """See ``Watcher``. A preemption is never taken back (the preemptor may be cancelled, the job is killed all the same)."""
        seen = ""
        while not stopped(self._interval):
            view = self._view()
            notice = preemption(view, self._restart_count, self._clock()) if view is not None else None
            if notice is not None and notice.source_id != seen:
                seen = notice.source_id
                emit(notice)
