"""The newest log entries of the runs of jobs that have ended, or may have, read from the store in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from job_wrapper.errors import Damaged, SpotburstError
from job_wrapper.store.io_types import ObjectStore
from slurm_plugin.manager.say import Once, log
from slurm_plugin.requeue import RunTail
from slurm_plugin.slurm.records import Job

Key = tuple[int, int, int, bool]
AGAIN = 10.0
"""Seconds before the store is asked again about a job after a fault."""


def _key(job: Job) -> Key:
    # What was read while it ran is not its last word, though its end may come when Slurm had told it would.
    return job.job_id, job.restart_count, job.end_time, job.running


class RunReader:
    """``look_up`` names the jobs; ``found`` has those read so far. Each is read once: nobody writes to the log of an attempt that has ended any more."""

    def __init__(
        self, cluster: str, open_store: Callable[[], ObjectStore], once: Once, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.cluster = cluster
        self._open, self._once, self._wake = open_store, once, wake
        self._store: ObjectStore | None = None
        self._found: dict[Key, tuple[RunTail, ...]] = {}
        self._wanted: dict[Key, Job] = {}
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._not_before: dict[Key, float] = {}
        """By job, so that one whose run can't be read does not hold up the others."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="runs", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current read."""
        with self._ready:
            self._stopped = True
            self._ready.notify()

    def look_up(self, jobs: Iterable[Job]) -> None:
        """Read these jobs' runs, and forget all others. First those of jobs that have ended: after slurmctld's start all that run may be asked about."""
        with self._ready:
            keys = {_key(job): job for job in sorted(jobs, key=lambda job: job.running)}
            self._found = {key: found for key, found in self._found.items() if key in keys}
            self._wanted = {key: job for key, job in keys.items() if key not in self._found}
            self._not_before = {key: when for key, when in self._not_before.items() if key in self._wanted}
            self._ready.notify()

    def found(self) -> dict[int, tuple[RunTail, ...]]:
        """By job id. A job that has no run in the store has ``()``."""
        with self._lock:
            return {key[0]: tails for key, tails in self._found.items()}

    def _run(self) -> None:
        self._mark()
        while True:
            with self._ready:
                while not self._stopped and (due := self._due()) is None:
                    self._ready.wait(1.0 if self._wanted else None)
                if self._stopped or due is None:
                    return
                key, job = due
            try:
                tails = self.read(job)
            except Exception as error:
                text = str(error) if isinstance(error, SpotburstError) else repr(error)
                self._once.fault(f"checkpoints of job {job.name_id}", text)
                self._store = None
                with self._lock:
                    self._not_before[key] = time.monotonic() + AGAIN
                continue
            self._once.well(f"checkpoints of job {job.name_id}")
            with self._lock:
                self._wanted.pop(key, None)
                self._found[key] = tails
            if tails:
                self._wake()

    def _mark(self) -> None:
        """Open the store once at the start: it is proved then, and carries the mark that a job which comes back looks for."""
        from job_wrapper.store.posix import PosixStore

        try:
            self._store = self._open()
            if isinstance(self._store, PosixStore):
                self._store.lay_out(self.cluster)
        except Exception as error:
            self._once.fault("checkpoint store", str(error) if isinstance(error, SpotburstError) else repr(error))

    def _due(self) -> tuple[Key, Job] | None:
        now = time.monotonic()
        return next((item for item in self._wanted.items() if self._not_before.get(item[0], now) <= now), None)

    def read(self, job: Job) -> tuple[RunTail, ...]:
        """The runs of one job. A run whose newest entry is damaged, or that is another user's, is left out and logged. Raises ``StoreError``."""
        from job_wrapper.store import RunLog, find_runs
        from job_wrapper.store.owners import is_of
        from job_wrapper.store.posix import PosixStore

        store = self._store = self._store or self._open()
        tails: dict[str, RunTail] = {}
        for job_id in dict.fromkeys((job.name_id, str(job.job_id))):
            if not job_id.replace("_", "").isalnum():
                continue
            for run in find_runs(store, self.cluster, job_id):
                if isinstance(store, PosixStore) and not is_of(store, run, job.user_id):
                    # Whoever can guess a job's id could have the manager bring that job back, or hold it.
                    log.warning(
                        "a run in the job's name is not its user's; it is passed over", job=job.name_id, run=run
                    )
                    continue
                try:
                    entry = RunLog(store, run).tail()
                except Damaged as error:
                    log.error(
                        "a run's newest log entry can't be read; its job is left alone",
                        job=job.name_id,
                        error=str(error),
                    )
                    continue
                if entry is not None:
                    tails[run] = RunTail.of(run, entry)
        return tuple(tails.values())
