"""Once an hour: the checkpoints of runs that ended long ago are freed, in a thread of its own (`job_wrapper.store.freeing`)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from job_wrapper.errors import SpotburstError
from job_wrapper.store.io_types import ObjectStore
from slurm_plugin.manager.say import Once, log

EVERY = 3600.0
"""Seconds."""


class Sweeper:
    """``start`` and ``stop`` as the manager's other threads. ``age``: seconds after a run's end. On a file system where the manager may not write to users' runs it frees none."""

    def __init__(
        self, cluster: str, open_store: Callable[[], ObjectStore], age: float, once: Once, every: float = EVERY
    ) -> None:
        self._cluster, self._open, self._age, self._once, self._every = cluster, open_store, age, once, every
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
                sweep = sweep or Sweep(self._open(), self._cluster, age=self._age)
                for swept in sweep.sweep():
                    if swept.error:
                        self._once.fault(f"checkpoints of {swept.run}", swept.error)
                    else:
                        log.info("checkpoints of an ended run freed", run=swept.run, bytes=swept.size)
                    if self._stopped.is_set():
                        return
                self._once.well("freeing old checkpoints")
            except Exception as error:
                self._once.fault(
                    "freeing old checkpoints", str(error) if isinstance(error, SpotburstError) else repr(error)
                )
            if self._stopped.wait(self._every):
                return
