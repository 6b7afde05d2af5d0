"""An attempt that slurmctld has forgotten, and launched again.

slurmctld saves its state every few seconds. One that is killed just after a job's start recalls the job as it was before, and starts it
once more, perhaps on other nodes: with a restart count that the run's log has already, or with a lower one. (Seen with 22.05.8.) Then
not the restart count tells which attempt is the newer, but Slurm alone: which node does it run the job on?
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

from xxhash import xxh3_128_hexdigest

from job_wrapper.run.identity import Identity
from job_wrapper.slurm_job import SlurmJob
from job_wrapper.store.io_types import Entry, Kind, Writer

PATIENCE = 120.0
"""Seconds for which a slurmctld that does not answer is asked: it has just been killed."""
POLL = 2.0


class OnlyOne:
    """Held by one wrapper of a run on this host, for as long as its process lives: the kernel gives it back, whatever ends that."""

    def __init__(self, uri: str, run: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # An abstract name (Linux, unix(7)): no file that a killed process leaves, and none that another user could remove.
            self._socket.bind(f"\0spotburst/{xxh3_128_hexdigest(f'{uri} {run}'.encode())}".encode())
            self.mine = True
        except OSError as error:
            self._socket.close()
            self.mine = error.errno != errno.EADDRINUSE


def may_be_forgotten(last: Entry, mine: Writer, digest: str, *, only_one: bool) -> bool:
    """Whether ``mine``, whose command has that digest, can be the same attempt as the one that wrote ``last``, launched again. Pure.

    Within one launch a step's first task runs on one host, and a second program there is a user's mistake: beside the first (``only_one`` is
    false), or after it, as the next line of a batch script is. Then the first has put its end into the log, or has another command. A later
    step of the same launch is none of this either.
    """
    old = last.writer
    if old.job_id != mine.job_id or mine.restart_count > old.restart_count:
        return False
    if mine.restart_count < old.restart_count:
        return True
    if mine.step_id != old.step_id:
        return False
    if mine.host != old.host:
        return True
    return only_one and last.kind is not Kind.END and last.summary.command_digest in (None, digest)


def is_forgotten(
    last: Entry,
    mine: Writer,
    digest: str,
    identity: Identity,
    job: SlurmJob | None,
    *,
    only_one: bool,
    steady: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether the attempt that wrote ``last`` has been forgotten: Slurm runs this job here, with this restart count.

    Where Slurm does not answer, it has not.
    """
    if job is None or not may_be_forgotten(last, mine, digest, only_one=only_one):
        return False
    until = steady() + PATIENCE
    while True:
        here = job.runs_here(identity.name_id, identity.restart_count)
        if here is not None or steady() >= until:
            return bool(here)
        sleep(POLL)
