"""The newest checkpoints of jobs that run, read from their runs' logs in a thread of its own; what metrics and the page tell of them.

One read of one byte a job and round, of the entry that would come next: most rounds find none. Nothing is decided by what is read here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from job_wrapper.errors import Damaged, ObjectMissing, SpotburstError, StoreError
from job_wrapper.store import told
from job_wrapper.store.io_types import Entry, Kind, ObjectStore
from job_wrapper.store.paths import log_key
from slurm_plugin.manager.say import Once
from slurm_plugin.slurm.records import Job

EVERY = 60.0
"""Seconds between two rounds where no job begins or ends to run."""
SOONEST = 5.0
"""Seconds between two rounds at least."""
FAULT = "the log of checkpoints"


@dataclass(frozen=True, slots=True)
class Saved:
    """A job's newest checkpoint. ``time`` in Unix seconds, ``interval`` in seconds; None where it is not known."""

    time: float
    step: int | None
    interval: float | None


@dataclass(frozen=True, slots=True)
class Interruption:
    """An attempt that ended with a notice or a signal. ``seconds`` from that to the checkpoint made for it; None where there is none."""

    seconds: float | None


@dataclass(slots=True)
class _Run:
    """One run's log, as far as it is read."""

    path: str
    seq: int = -1
    newest: Saved | None = None
    interval: float | None = None
    urgent: tuple[int, float] | None = None
    """Epoch and time of the newest checkpoint that was made at a notice."""

    def take(self, entry: Entry) -> Interruption | None:
        """The next entry."""
        pace = entry.body.get("interval")
        if isinstance(pace, dict) and (seconds := told.seconds(pace.get("seconds"))) is not None:
            self.interval = seconds
        commits = entry.summary.commits
        self.newest = Saved(commits[-1].time, commits[-1].step, self.interval) if commits else None
        self.seq = entry.seq
        if entry.kind is Kind.COMMIT and entry.body.get("urgent"):
            self.urgent = entry.epoch, entry.time
        arrived = told.seconds(entry.body.get("arrived"))
        if entry.kind is not Kind.INTERRUPTED or arrived is None:
            return None
        made = self.urgent is not None and self.urgent[0] == entry.epoch and self.urgent[1] >= arrived
        return Interruption(self.urgent[1] - arrived if made and self.urgent is not None else None)


@dataclass(slots=True)
class _Watched:
    running: bool
    user: int
    """User id of the job's owner."""
    runs: dict[str, _Run] = field(default_factory=dict)


class Saves:
    """``watch`` names the jobs, ``found`` has what is known of those that run. ``heard`` is called with each interruption that is read."""

    def __init__(
        self,
        cluster: str,
        open_store: Callable[[], ObjectStore],
        once: Once,
        heard: Callable[[Interruption], None] = lambda _: None,
        every: float = EVERY,
    ) -> None:
        self.cluster = cluster
        self.reachable: bool | None = None
        """Whether the store answered in the last round that asked it; None before."""
        self._open, self._once, self._heard, self._every = open_store, once, heard, every
        self._store: ObjectStore | None = None
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._stopped, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._go, name="saves", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current read."""
        self._stopped.set()
        self._news.set()

    def watch(self, jobs: Iterable[Job]) -> None:
        """These jobs are there now: those that run are looked at, and those that ran go on being until they have gone."""
        with self._lock:
            before = self._watched
            ran = {job for job, watched in before.items() if watched.running}
            self._watched = {
                job.name_id: _Watched(
                    job.running, job.user_id, before[job.name_id].runs if job.name_id in before else {}
                )
                for job in jobs
                if job.running or job.name_id in before
            }
            if ran != {job for job, watched in self._watched.items() if watched.running}:
                self._news.set()

    def found(self) -> dict[str, Saved | None]:
        """By job that runs and that has a run in the store: its newest checkpoint, of several programs the oldest one's."""
        with self._lock:
            return {
                job: _oldest(watched.runs.values())
                for job, watched in self._watched.items()
                if watched.running and watched.runs
            }

    def look(self) -> None:
        """One round. Never raises for what the store does."""
        from job_wrapper.store.posix import PosixStore

        with self._lock:
            jobs = list(self._watched.items())
        for job, watched in jobs:
            if self._stopped.is_set():
                return
            try:
                self._job(job, watched)
                self.reachable = True
            except Damaged:
                self.reachable = True  # whoever asks about the job is told
            except Exception as error:
                if isinstance(self._store, PosixStore) and isinstance(error, StoreError) and self._store.is_there():
                    continue  # this job's folders alone: closed, or something else is in their place
                self.reachable = False
                self._store = None
                self._once.fault(FAULT, str(error) if isinstance(error, SpotburstError) else repr(error))
                return
        self._once.well(FAULT)

    def _job(self, job: str, watched: _Watched) -> None:
        from job_wrapper.store import RunLog, find_runs
        from job_wrapper.store.owners import is_of
        from job_wrapper.store.posix import PosixStore

        store = self._store = self._store or self._open()
        if not watched.runs and job.replace("_", "").isalnum():
            found = {
                path: _Run(path)
                for path in find_runs(store, self.cluster, job)
                if not isinstance(store, PosixStore) or is_of(store, path, watched.user)
            }
            for run in found.values():
                tail = RunLog(store, run.path).tail()
                if tail is not None:
                    run.take(tail)  # what it tells happened before anybody looked
            with self._lock:
                watched.runs.update(found)
            return
        for run in watched.runs.values():
            log = RunLog(store, run.path)
            try:
                store.get_range(log_key(run.path, run.seq + 1), 0, 1)
            except ObjectMissing:
                continue
            # The listing tells sizes: an entry that is none, and large, is not read.
            for seq in log.seqs():
                interruption = run.take(log.read(seq)) if seq > run.seq else None
                if interruption is not None:
                    self._heard(interruption)

    def _go(self) -> None:
        while not self._stopped.is_set():
            self.look()
            if not self._stopped.wait(min(SOONEST, self._every)):
                self._news.wait(max(0.0, self._every - SOONEST))
                self._news.clear()


def _oldest(runs: Iterable[_Run]) -> Saved | None:
    known = [run.newest for run in runs]
    made = [one for one in known if one is not None]
    return min(made, key=lambda one: one.time) if made and len(made) == len(known) else None
