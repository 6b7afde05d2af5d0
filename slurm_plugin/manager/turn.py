"""Whose turn it is: of the managers on a cluster's controllers one acts, and the others stand by.

The manager belongs to the controller that acts: that one's power programs write the requests and wake it. And it acts only while it holds
the lock in state_dir, which lies where StateSaveLocation lies, so that what one manager has set down the next one finds. What is known of
controllers only says who tries; that never two act is the lock's work.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_plugin.manager.say import Once, log
from slurm_plugin.manager.service import Service
from slurm_plugin.manager.single import Lock, LockTaken, only_one, prepare
from slurm_plugin.slurm.controllers import Watch, same_host

EVERY = 2.0
"""Seconds between two tries while standing by, and between two looks at the controllers while acting."""


@contextlib.contextmanager
def my_turn(state_dir: Path, watch: Watch, service: Service, stopped: threading.Event) -> Iterator[Lock | None]:
    """Wait until this manager is the one to act, and hold the lock; None if ``stopped`` was set meanwhile (by a signal's handler, which
    must not touch what is being waited for: so it is looked at between two tries).

    Raises ``LockTaken`` if a manager of this same machine holds the lock, ``ConfigError`` if the directory can't be used.
    """
    # Also of one that stands by: slurmctld's power programs need it.
    prepare(state_dir)
    said, here = Once(), socket.gethostname()
    while not stopped.is_set():
        watch.look()
        waits_for = ""
        if watch.here:
            try:
                with only_one(state_dir) as lock:
                    said.well("standing by")
                    yield lock
                    return
            except LockTaken as taken:
                if taken.host and same_host(taken.host, here):
                    raise
                waits_for = str(taken)
        elif watch.acting:
            waits_for = f"slurmctld acts on {watch.acting}, and so does the manager there"
        else:
            waits_for = "it is not known yet which slurmctld acts"
        said.fault("standing by", waits_for)
        service.status(f"standing by: {waits_for}")
        # Waiting is this service's work here: a start that is not finished would hold up the machine's boot.
        service.ready()
        service.alive()
        time.sleep(min(EVERY, service.longest_pause))
    yield None


class Post:
    """Whether this manager may go on acting, looked at in a thread of its own: Slurm may take long to answer."""

    def __init__(self, lock: Lock, watch: Watch) -> None:
        self._lock, self._watch = lock, watch
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current look."""
        self._stopped.set()

    def lost(self) -> str:
        """Why this manager has to stop acting now; "" while it may go on. Asks the storage, not Slurm."""
        if not self._lock.ours():
            return f"{self._lock.path} is another's now"
        if self._watch.elsewhere:
            return f"slurmctld acts on {self._watch.acting} now: the manager there takes over"
        return ""

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            try:
                self._watch.look()
            except Exception as error:
                log.error("looking at the controllers failed", error=repr(error))
