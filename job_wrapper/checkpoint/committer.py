"""Who commits: the wrapper over its socket, or this program itself over a store and the run's log."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from job_wrapper.checkpoint import outage
from job_wrapper.client import Committed, Connection, Request, Restore, shared
from job_wrapper.errors import BEGIN_ANEW, Fenced, RestoreFailed, SpotburstError, StoreError, UsageError
from job_wrapper.protocol import SOCKET_VARIABLE
from job_wrapper.store import (
    Claim,
    ObjectRef,
    ObjectStore,
    RunLog,
    Writer,
    collect,
    open_store,
    run_path,
    write_manifest,
)

log = logging.getLogger("spotburst")

URI_VARIABLE = "SPOTBURST_URI"
RUN_VARIABLE = "SPOTBURST_RUN"


class Committer(Protocol):
    """The right to commit to a run, as a `Checkpointer` needs it.

    ``attention`` is looked at once a step and must cost nothing; it is True while there is a request, or the program must stop.
    ``stopped`` is True when the program must not go on. Requests come in other threads and only set attributes.
    """

    uri: str
    run: str
    store: ObjectStore
    data_prefix: str
    patience: float
    """Seconds that a store which is away is waited for, where nobody asks again later; 0: every failed save is raised."""

    @property
    def attention(self) -> bool: ...

    @property
    def stopped(self) -> bool: ...

    @property
    def fenced(self) -> bool: ...

    def request(self) -> Request | None:
        """The newest request that is not taken."""
        ...

    def take(self) -> Request | None:
        """The same, and it isn't seen again: who takes it answers it by ``commit`` or ``failed``, or by taking a later one."""
        ...

    def restore_point(self) -> Restore | None:
        """The checkpoint to begin from; None for a new run."""
        ...

    def restore_failed(self, entry: int, error: str) -> Restore | None:
        """That one is damaged: returns an older one. Raises ``RestoreFailed`` (or ends the program) when there is none left."""
        ...

    def restore_done(self, entry: int, seconds: float) -> None: ...

    def staged(self, seq: int, seconds: float) -> None:
        """The program goes on; its state was copied within ``seconds``, and is written behind it. Never raises."""
        ...

    def commit(self, step: int, parts: Mapping[str, ObjectRef], seq: int | None) -> Committed:
        """Commit parts that are durable; ``seq`` is that of the request it answers. Raises ``CheckpointFailed``, ``Fenced``."""
        ...

    def failed(self, seq: int, error: str, kind: str = "") -> None:
        """The request could not be met; ``kind`` as ``errors.kind_of`` gives it."""
        ...

    def progress(self, completed: int, total: int | None) -> None: ...

    def close(self) -> None: ...


class SocketCommitter:
    """Over the wrapper's events socket (``protocol.py``). The wrapper holds the claim, and sends requests at its interval."""

    def __init__(self, connection: Connection) -> None:
        welcome = connection.welcome
        self._connection = connection
        self.uri, self.run, self.data_prefix = welcome.uri, welcome.run, welcome.data
        self.patience = welcome.patience
        # The wrapper has proved the store.
        self.store = outage.read_patiently(
            self, partial(open_store, welcome.uri, endpoint_url=welcome.endpoint_url, prove=False)
        )

    @property
    def attention(self) -> bool:
        c = self._connection
        return c.request is not None or c.stop or c.closed

    @property
    def stopped(self) -> bool:
        # Without the wrapper nothing can be committed any more, and nobody would bring the job back.
        return self._connection.stop or self._connection.closed

    @property
    def fenced(self) -> bool:
        return self._connection.fenced is not None

    def request(self) -> Request | None:
        return self._connection.request

    def take(self) -> Request | None:
        return self._connection.take_request()

    def restore_point(self) -> Restore | None:
        return self._connection.welcome.restore

    def restore_failed(self, entry: int, error: str) -> Restore | None:
        return self._connection.restore_failed(entry, error).restore

    def restore_done(self, entry: int, seconds: float) -> None:
        self._connection.restore_done(entry, seconds)

    def staged(self, seq: int, seconds: float) -> None:
        with contextlib.suppress(SpotburstError):  # the commit will meet whatever is wrong
            self._connection.staged(seq, seconds)

    def commit(self, step: int, parts: Mapping[str, ObjectRef], seq: int | None) -> Committed:
        return self._connection.commit(step, parts, seq=seq)

    def failed(self, seq: int, error: str, kind: str = "") -> None:
        self._connection.failed(seq, error, kind)

    def progress(self, completed: int, total: int | None) -> None:
        self._connection.progress(completed, total)

    def close(self) -> None:
        """The connection belongs to the process and is left open."""


class DirectCommitter:
    """Straight to the store, for a program that runs without the wrapper but names a checkpoint URI.

    It claims the run for itself: a second start of the same run takes it over and fences the first. ``interval`` seconds pass
    between its own requests; None makes none. Older checkpoints are removed after a commit, beside the program; the next commit, ``close``
    and the end of the program wait for that.
    """

    def __init__(self, claim: Claim, *, interval: float | None = None) -> None:
        self.uri, self.run, self.store, self.data_prefix = claim.store.uri, claim.run, claim.store, claim.data_prefix
        self.patience = 0.0
        self.stopped = False
        self.fenced = False
        self.attention = False
        self._claim = claim
        self._request: Request | None = None
        self._stop_after = 0
        self._seq = 0
        self._lock = threading.RLock()  # a signal handler may ask while its own thread is in here
        self._closed = threading.Event()
        self._tried: set[int] = set()
        self._collector = ThreadPoolExecutor(1, "spotburst-collect")
        self._collecting: Future[None] | None = None
        if interval:
            threading.Thread(target=self._tick, args=(interval,), name="spotburst-interval", daemon=True).start()

    @classmethod
    def open(
        cls, uri: str, run: str = "main", *, endpoint_url: str = "", keep: int = 3, interval: float | None = None
    ) -> DirectCommitter:
        """Open the store, claim ``local/<run>/main``. Raises the store's errors and ``UsageError``."""
        store = open_store(uri, endpoint_url=endpoint_url)
        nonce = os.urandom(8).hex()
        # Each start is a job of its own: nobody requeues it, so none is a recovery of another.
        writer = Writer("local", f"{os.getpid()}-{nonce}", 0, 0, socket.gethostname(), nonce)
        claim = RunLog(store, run_path("local", run)).claim(writer, keep=keep)
        for damaged in claim.passed_over:
            log.warning("passed over: %s", damaged)
        return cls(claim, interval=interval)

    def ask(self, *, urgent: bool = False, stop: bool = False, reason: str = "") -> None:
        """Ask the program for a checkpoint; with ``stop`` it ends after the commit. Safe in a signal handler."""
        with self._lock:
            self._seq += 1
            if stop:
                self._stop_after = self._seq
            standing = self._request
            urgent = urgent or (standing is not None and standing.urgent)
            self._request = Request(self._seq, urgent, None, reason, time.time())
            self.attention = True

    def request(self) -> Request | None:
        return self._request

    def take(self) -> Request | None:
        with self._lock:
            request, self._request = self._request, None
            self.attention = self.stopped
            return request

    def restore_point(self) -> Restore | None:
        """The newest commit that isn't known to be damaged."""
        summary = self._claim.entry.summary
        for commit in reversed(summary.commits):
            if commit.seq not in self._tried and not summary.failed_restores.get(commit.seq):
                return Restore(commit.seq, commit.epoch, commit.step, commit.manifest)
        if count := len(summary.commits):
            which = "the only checkpoint there can't" if count == 1 else f"none of the {count} checkpoints there can"
            raise RestoreFailed(f"{self.uri}/{self.run}: {which} be restored; " + BEGIN_ANEW)
        return None

    def restore_failed(self, entry: int, error: str) -> Restore | None:
        self._tried.add(entry)
        self._claim.restore_failed(entry, error)
        return self.restore_point()

    def restore_done(self, entry: int, seconds: float) -> None:
        log.info("restored the checkpoint of entry %d in %.2f s", entry, seconds)

    def staged(self, seq: int, seconds: float) -> None:
        """Nobody to tell: its interval is fixed."""

    def commit(self, step: int, parts: Mapping[str, ObjectRef], seq: int | None) -> Committed:
        claim = self._claim
        self.collected()
        manifest = write_manifest(self.store, self.run, claim.epoch, claim.data_prefix, step=step, parts=parts)
        try:
            entry = claim.commit(manifest, step=step)
        except Fenced:
            self.fenced = self.stopped = self.attention = True
            raise
        stop = seq is not None and 0 < self._stop_after <= seq
        if stop:
            self.stopped = self.attention = True
        else:
            self._collecting = self._collector.submit(self._collect)
        return Committed(entry.seq, stop)

    def _collect(self) -> None:
        try:
            collect(self._claim)
        except Fenced:
            self.fenced = self.stopped = self.attention = True
        except StoreError as error:
            log.warning("older checkpoints were not removed: %s", error)

    def collected(self) -> None:
        """Wait until what the last commit made needless is removed."""
        collecting, self._collecting = self._collecting, None
        if collecting is not None:
            collecting.result()

    def failed(self, seq: int, error: str, kind: str = "") -> None:
        log.warning("no checkpoint was made: %s", error)

    def progress(self, completed: int, total: int | None) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        self._closed.set()
        self.collected()

    def _tick(self, interval: float) -> None:
        while not self._closed.wait(interval):
            self.ask(reason="interval")


def find_committer(
    uri: str | None, run: str | None, *, endpoint_url: str = "", keep: int = 3, interval: float | None = 600.0
) -> SocketCommitter | DirectCommitter | None:
    """The wrapper where there is one; else ``uri`` and ``run``, or both ``SPOTBURST_URI`` and ``SPOTBURST_RUN``; else None: nothing is saved.

    ``SPOTBURST_URI`` alone is the wrapper's, and a program that runs without one is not bound by it. Raises ``ConnectionLost``, the
    store's errors, ``UsageError``.
    """
    connection = shared()
    if connection is not None:
        return SocketCommitter(connection)
    if os.environ.get(SOCKET_VARIABLE):
        return None  # a forked helper of a program under the wrapper: it must not take the run from its parent
    run = run or os.environ.get(RUN_VARIABLE)
    if uri is None and run:
        uri = os.environ.get(URI_VARIABLE)
    elif uri is None and os.environ.get(URI_VARIABLE):
        log.warning(
            "%s is set, but the run has no name, so no checkpoint is made: set %s too, or start the program with `spotburst run`",
            URI_VARIABLE,
            RUN_VARIABLE,
        )
    if not uri:
        return None
    if not run:
        raise UsageError(
            f"checkpoints are to go to {uri}, but the run has no name: give Checkpointer(run=…), set {RUN_VARIABLE}, "
            "or start the program with `spotburst run`"
        )
    return DirectCommitter.open(uri, run, endpoint_url=endpoint_url, keep=keep, interval=interval)
