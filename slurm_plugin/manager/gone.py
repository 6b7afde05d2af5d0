"""Since when Slurm no longer shows a job: kept in a file, so that a manager that is started again goes on counting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from job_wrapper.store import told
from slurm_plugin.slurm.records import Job


class Gone:
    """Job ids, as runs are named by them, and since when Slurm does not show them. Only those that were asked about are followed.

    A file that is lost or can't be read begins all counts anew: nothing is ever taken for gone earlier than it was seen to be.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._shown: frozenset[str] | None = None
        self._since: dict[str, float | None] = self._load()
        """None: Slurm showed it at the last look."""

    def look(self, jobs: Iterable[Job]) -> None:
        """Take in Slurm's answer: all jobs that it has in memory, ended ones included, since those can be requeued."""
        shown = frozenset(name for job in jobs for name in _names(job))
        now = self._clock()
        for job_id, since in self._since.items():
            if job_id in shown or _folded(job_id, shown):
                self._since[job_id] = None
            elif since is None:
                self._since[job_id] = now
        self._shown = shown
        self.save()

    def since(self, job_id: str) -> float | None:
        """Since when the job has not been shown (Unix seconds); None while it is, or before the first look. From now on it is followed:
        over a restart once that is saved."""
        if self._shown is None:
            return None
        if job_id not in self._since:
            there = job_id in self._shown or _folded(job_id, self._shown)
            self._since[job_id] = None if there else self._clock()
        return self._since[job_id]

    def forget(self, job_id: str) -> None:
        """It is of no interest any more."""
        self._since.pop(job_id, None)

    def save(self) -> None:
        """Write it down: the whole file, so once for many."""
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json.dumps(self._since), encoding="utf-8")
        new.replace(self._path)

    def _load(self) -> dict[str, float | None]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        now = self._clock()
        kept: dict[str, float | None] = {}
        for job_id, since in found.items():
            when = told.seconds(since)
            if when is not None or since is None:
                kept[job_id] = None if when is None else min(when, now)
        return kept


def _names(job: Job) -> tuple[str, ...]:
    """What a run of it may be named by. An array's waiting tasks are one record, 123_[4-9]: each of its tasks is there."""
    array, bracket, _ = job.name_id.partition("_[")
    return (job.name_id, str(job.job_id), *([f"{array}_*"] if bracket else []))


def _folded(job_id: str, shown: frozenset[str]) -> bool:
    array, task, _ = job_id.partition("_")
    return bool(task) and f"{array}_*" in shown
