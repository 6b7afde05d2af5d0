"""Freeing a run: its checkpoints are deleted, its log stays and gets a last entry that no earlier holder can pass.

The entry comes first. It is put where any other next entry would go, under an epoch of its own: whoever still holds the run is
fenced by it, whoever claims the run after it finds no commit, and whoever claims it before it keeps everything, since then the put meets
that claim and nothing is deleted. A crash in between leaves data that no entry names; the next look at the run deletes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from job_wrapper.errors import Damaged, ObjectMissing, RunHeld, SpotburstError, StoreError, StoreRefused
from job_wrapper.store import paths
from job_wrapper.store.as_owner import as_owner
from job_wrapper.store.codec import MAX_ENTRY, encode_entry
from job_wrapper.store.decided_put import Patience, decided_put
from job_wrapper.store.io_types import Entry, Kind, ObjectInfo, ObjectStore
from job_wrapper.store.log import RunLog, run_of_pointer
from job_wrapper.store.owners import run_owner
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.retention import LeavesUnfinished

KEEP_ENDED = 7 * 86400.0
"""Seconds for which an ended run keeps its checkpoints."""
DELETED, EXPIRED = "Deleted", "Expired"
"""Reasons of a freed run's last entry."""
_FREED = "freed"
_SLURM_ID = re.compile(r"\d+(_\d+)?\Z")
_AGAIN = 3600.0
"""Seconds until a run that was due is looked at again: it may not have been freed wholly."""


def is_freed(entry: Entry) -> bool:
    """Whether this is the last entry of a run whose checkpoints were freed. Pure."""
    return entry.kind is Kind.END and entry.body.get(_FREED) is True


def expires(entry: Entry, age: float = KEEP_ENDED) -> float | None:
    """When the checkpoints of a run with this newest entry may go (Unix seconds); None as long as it has not ended. Pure."""
    return entry.time + age if entry.kind is Kind.END else None


def require_owner(store: ObjectStore, run: str) -> None:
    """On a file system only whoever made a run, or root, may free it; a bucket has its own rights. Raises ``StoreRefused``."""
    if isinstance(store, PosixStore):
        owner = run_owner(store, run)
        if owner is not None and os.geteuid() not in (owner[0], 0):
            raise StoreRefused(f"{store.uri}/{run}: belongs to user {owner[0]}: only that user may delete it")


def size_of(store: ObjectStore, run: str) -> int:
    """Bytes that the run's checkpoints take now."""
    return sum(info.size for info in store.list(paths.data_root(run)))


def free(
    store: ObjectStore,
    run: str,
    last: Entry,
    reason: str,
    *,
    clock: Callable[[], float] = time.time,
    patience: Patience | None = None,
) -> int:
    """Free the run whose newest entry is ``last``; returns the number of bytes deleted. May be called again after a crash.

    Raises ``RunHeld`` with nothing deleted if something was written to the run since ``last`` was read, ``StoreRefused`` if the run
    is another user's, ``StoreError``.
    """
    require_owner(store, run)

    def act() -> int:
        entry = last
        if not is_freed(last):
            entry = _tombstone(last, reason, clock())
            found = decided_put(store, paths.log_key(run, entry.seq), encode_entry(entry, run), patience or Patience())
            if found is not None:
                raise RunHeld(f"{store.uri}/{run}: somebody wrote to this run just now, so nothing of it was deleted")
        return _delete(store, run, entry.epoch)

    owner = run_owner(store, run) if isinstance(store, PosixStore) else None
    return act() if owner is None or owner[0] == os.geteuid() else as_owner(*owner, act)


def _tombstone(last: Entry, reason: str, now: float) -> Entry:
    """By the job that wrote last: what that job may do later is decided as before."""
    code = 1 if last.summary.ended is None else last.summary.ended
    return Entry(
        seq=last.seq + 1,
        kind=Kind.END,
        epoch=last.summary.epoch + 1,
        writer=replace(last.writer, host=socket.gethostname(), nonce=os.urandom(8).hex()),
        time=now,
        summary=replace(
            last.summary, epoch=last.summary.epoch + 1, commits=(), failed_restores={}, ended=code, barren=0
        ),
        body={"exit_code": code, "reason": reason, _FREED: True},
    )


def _delete(store: ObjectStore, run: str, epoch: int) -> int:
    """All data of epochs before ``epoch``. Manifests last, as ``collect`` does it; what is not ours stays."""
    doomed = []
    for info in store.list(paths.data_root(run)):
        found = paths.epoch_of(run, info.key)
        if found is not None and found < epoch:
            doomed.append(info)
    doomed.sort(key=lambda info: ("/manifest-" in info.key, info.key))
    store.delete([info.key for info in doomed])
    if isinstance(store, LeavesUnfinished):
        store.discard_unfinished(*(paths.data_prefix(run, number) + "/" for number in range(1, epoch)))
    return sum(info.size for info in doomed)


class Swept(NamedTuple):
    """One run that has outlived its time: ``size`` bytes freed (or to be freed), or why it was not."""

    run: str
    ended: float
    size: int
    error: str = ""


def job_of(run: str, entry: Entry) -> str | None:
    """The Slurm job without which nobody goes on with this run that has not ended; None for one that has a name of its own (``--run``),
    which a later job may go on with, or that was started outside Slurm. Pure."""
    job_id = run.split("/")[1]
    return job_id if entry.writer.job_id == job_id and _SLURM_ID.match(job_id) else None


class Sweep:
    """Frees runs that ended longer than ``age`` seconds ago. Kept for long, it asks the store about each run only when it may be due."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: str,
        *,
        age: float = KEEP_ENDED,
        clock: Callable[[], float] = time.time,
        gone_since: Callable[[str], float | None] = lambda job_id: None,
    ) -> None:
        """``gone_since(job_id)``: since when (Unix seconds) Slurm has not shown that job any more, so that its run, whose log says nothing
        of an end (cancelled, or its node was lost for good), has no future; None while it may come back, or that is not known."""
        self.store, self.cluster, self.age = store, cluster, age
        self._clock, self._gone_since = clock, gone_since
        self._not_before: dict[str, float] = {}

    def due(self) -> Iterator[tuple[str, Entry]]:
        """Runs whose time is over, and freed ones of which something may be left. Raises ``StoreError``."""
        now = self._clock()
        # A larger one is none of ours, and may be larger than memory.
        pointers = [info.key for info in self._pointers() if info.size <= MAX_ENTRY]
        seen: set[str] = set()
        for pointer in pointers:
            if now < self._not_before.get(pointer, now):
                continue
            try:
                run = run_of_pointer(self.store, pointer)
                entry = RunLog(self.store, run).tail()
            except (Damaged, ObjectMissing):
                entry = None  # nothing may be concluded; `describe` tells
            except StoreError:
                if not isinstance(self.store, PosixStore):
                    raise
                entry = None  # its user keeps it closed, or has put something else there
            when = None if entry is None else expires(entry, 0.0 if is_freed(entry) else self.age)
            if entry is not None and when is None and (job_id := job_of(run, entry)) is not None:
                since = self._gone_since(job_id)
                when = None if since is None else max(since, entry.time) + self.age
            if entry is None or when is None or now < when:
                # One that has not ended can't be over sooner than that.
                self._not_before[pointer] = when if when is not None else now + self.age
                continue
            self._not_before[pointer] = now + (self.age if is_freed(entry) else _AGAIN)
            if run not in seen:
                seen.add(run)
                yield run, entry

    def _pointers(self) -> Iterator[ObjectInfo]:
        top = paths.job_pointer(self.cluster, "x", "")[: -len("x/")]
        if not isinstance(self.store, PosixStore):
            yield from self.store.list(top)
            return
        for job in self.store.folders(top.rstrip("/")):
            # One user's folder, closed or odd, must not keep those of all others from being looked at.
            with contextlib.suppress(StoreError):
                yield from self.store.list(f"{top}{job}/")

    def one(self, run: str, entry: Entry) -> Swept:
        """Free one that is due; what keeps it from being freed is told, not raised."""
        try:
            return Swept(run, entry.time, free(self.store, run, entry, EXPIRED, clock=self._clock))
        except SpotburstError as error:
            return Swept(run, entry.time, 0, str(error))

    def sweep(self) -> Iterator[Swept]:
        """Free what is due. Raises ``StoreError`` where the store can't be asked what that is."""
        for run, entry in self.due():
            swept = self.one(run, entry)
            if swept.size or swept.error or not is_freed(entry):
                yield swept
