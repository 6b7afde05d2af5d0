"""Once an hour: the checkpoints of runs that ended long ago are freed, in a thread of its own (`job_wrapper.store.freeing`).

So are those of runs whose log tells of no end (the job was cancelled, or died), once Slurm has not shown the job for as long (`gone`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from job_wrapper.errors import SpotburstError
from job_wrapper.store.io_types import ObjectStore
from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.manager.gone import Gone
from slurm_plugin.manager.say import Once, log
from slurm_plugin.slurm.records import Job

if TYPE_CHECKING:
    from job_wrapper.store.freeing import Sweep

EVERY = 3600.0
"""Seconds."""


class Sweeper:
    """``start`` and ``stop`` as the manager's other threads. ``age``: seconds after a run's end. On a file system where the manager may not write to users' runs it frees none."""

    def __init__(
        self,
        cluster: str,
        open_store: Callable[[], ObjectStore],
        age: float,
        once: Once,
        every: float = EVERY,
        *,
        gone: Gone | None = None,
        jobs: Callable[[], Iterable[Job]] = tuple,
    ) -> None:
        """``jobs``: all that Slurm shows; where that raises, no job is taken for gone. Without ``gone`` only ended runs are freed."""
        self._cluster, self._open, self._age, self._once, self._every = cluster, open_store, age, once, every
        self._gone, self._jobs = gone, jobs
        self._known = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a run that is being freed is freed wholly by the next sweep."""
        self._stopped.set()

    def _run(self) -> None:
        from job_wrapper.store.freeing import Sweep

        sweep: Sweep | None = None
        while True:
            try:
                sweep = sweep or Sweep(self._open(), self._cluster, age=self._age, gone_since=self._gone_since)
                self._look()
                self._free(sweep)
                self._once.well("freeing old checkpoints")
            except Exception as error:
                sweep = None  # the store may be another one by the next time
                self._once.fault(
                    "freeing old checkpoints", str(error) if isinstance(error, SpotburstError) else repr(error)
                )
            if self._stopped.wait(self._every):
                return

    def _free(self, sweep: Sweep) -> None:
        try:
            for swept in sweep.sweep():
                if swept.error:
                    self._once.fault(f"checkpoints of {swept.run}", swept.error)
                else:
                    log.info("checkpoints of an ended run freed", run=swept.run, bytes=swept.size)
                    if self._gone is not None:
                        self._gone.forget(swept.run.split("/")[1])
                if self._stopped.is_set():
                    return
        finally:
            if self._gone is not None:
                self._gone.save()

    def _look(self) -> None:
        self._known = False
        if self._gone is None:
            return
        try:
            self._gone.look(self._jobs())
            self._known = True
        except (SlurmUnavailable, SlurmRefused) as error:
            self._once.fault("jobs that are gone", str(error))

    def _gone_since(self, job_id: str) -> float | None:
        return self._gone.since(job_id) if self._gone is not None and self._known else None
