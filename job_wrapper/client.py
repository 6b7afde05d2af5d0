"""The program's end of the events socket: what `job_wrapper.checkpoint` and the functions of `job_wrapper` stand on.

A daemon thread reads what the wrapper says and only sets attributes; saving happens where the program looks at them, between
its own steps. Nothing here runs a collective, replaces a signal handler of the program's own, or writes to the store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from job_wrapper.errors import CheckpointFailed, Fenced, SpotburstError, StoreAway
from job_wrapper.protocol import MAX_LINE, SOCKET_VARIABLE, decode, encode
from job_wrapper.store.io_types import ObjectRef
from job_wrapper.tell import connected


class ConnectionLost(SpotburstError):
    """The wrapper is gone, or closed the connection: nothing can be committed any more."""

    reason = "ConnectionLost"


@dataclass(frozen=True, slots=True)
class Request:
    """The wrapper wants a checkpoint. ``deadline`` and ``arrived`` (when this process heard of it) in Unix seconds."""

    seq: int
    urgent: bool
    deadline: float | None
    reason: str
    arrived: float


@dataclass(frozen=True, slots=True)
class Restore:
    """The commit to restore: the log entry that holds it, its step, and its manifest."""

    entry: int
    epoch: int
    step: int | None
    manifest: ObjectRef


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the wrapper says first. ``data`` is the prefix that this epoch writes under; ``interval`` in seconds.

    ``patience``: seconds that a store which is away is waited for. ``completed`` and ``total``: the counters that the last commit holds.
    """

    run: str
    uri: str
    endpoint_url: str
    epoch: int
    data: str
    restore: Restore | None
    interval: float
    patience: float = 0.0
    completed: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """It is in the log, as this entry. With ``stop`` the program must not go on."""

    entry: int
    stop: bool


def _reference(value: Mapping[str, Any]) -> ObjectRef:
    return ObjectRef(key=str(value["key"]), length=int(value["length"]), checksum=str(value["checksum"]))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _welcome(message: Mapping[str, Any]) -> Welcome:
    restore, progress = message.get("restore"), message.get("progress") or {}
    return Welcome(
        run=str(message["run"]),
        uri=str(message["uri"]),
        endpoint_url=str(message.get("endpoint_url") or ""),
        epoch=int(message["epoch"]),
        data=str(message["data"]),
        restore=None
        if restore is None
        else Restore(
            entry=int(restore["entry"]),
            epoch=int(restore["epoch"]),
            step=None if restore.get("step") is None else int(restore["step"]),
            manifest=_reference(restore["manifest"]),
        ),
        interval=float(message.get("interval") or 600.0),
        patience=float(message.get("patience") or 0.0),
        completed=_count(progress.get("completed")),
        total=_count(progress.get("total")),
    )


class Connection:
    """One subscription to the wrapper. All methods may be called from any thread.

    ``request`` is the newest request not yet taken, or None: a plain attribute, to be looked at between steps.
    ``stop`` becomes True when the program must not go on, ``fenced`` holds the newer epoch once there is one,
    ``closed`` is True when the wrapper is gone. ``listener``, if set, is called in the reading thread with every message.
    """

    def __init__(self, stream: socket.socket) -> None:
        self.welcome: Welcome  # the newest; set before connect() returns
        self.request: Request | None = None
        self.stop = False
        self.fenced: int | None = None
        self.closed = False
        self.listener: Callable[[dict[str, Any]], None] | None = None
        self._stream = stream
        self._sending = threading.Lock()
        self._one_commit = threading.Lock()
        self._changed = threading.Condition()
        self._welcomes: list[Welcome] = []
        self._answers: dict[int | None, dict[str, Any]] = {}

    @classmethod
    def connect(cls, path: str | None = None, *, timeout: float = 30.0) -> Connection | None:
        """Connect, subscribe, wait for the welcome (``timeout`` seconds).

        None when there is no wrapper: no path given and no ``SPOTBURST_SOCKET``. Raises ``ConnectionLost`` if the wrapper is
        named but does not answer.
        """
        path = path or os.environ.get(SOCKET_VARIABLE)
        if not path:
            return None
        try:
            stream = connected(path, timeout)
        except OSError as error:
            raise ConnectionLost(
                f"{SOCKET_VARIABLE}={path}: the wrapper does not answer ({error.strerror or error}); "
                "if this program should run without it, unset that variable"
            ) from error
        stream.settimeout(None)
        connection = cls(stream)
        _take_signals()
        threading.Thread(target=connection._read, name="spotburst-events", daemon=True).start()
        connection._send({"type": "checkpoint.subscribe"})
        connection._next_welcome(timeout)
        return connection

    def take_request(self) -> Request | None:
        """The standing request, taken: it isn't seen again. Whoever takes it must answer it (commit, ack or failed)."""
        with self._changed:
            request, self.request = self.request, None
            return request

    def commit(
        self,
        step: int | None,
        parts: Mapping[str, ObjectRef],
        *,
        seq: int | None = None,
        timeout: float | None = None,
    ) -> Committed:
        """Commit parts that are durable in the store, and wait for the answer.

        ``seq`` is that of the request answered, None for a checkpoint of the program's own. Raises ``CheckpointFailed`` (the
        previous commit stands; ``StoreAway``, a kind of it, where trying later may help), ``Fenced``, or ``ConnectionLost``. One commit at a time: a second caller waits.
        """
        message = {
            "type": "checkpoint.commit",
            "seq": seq,
            "step": step,
            "parts": {name: asdict(reference) for name, reference in parts.items()},
        }
        return self._ask(message, seq, timeout)

    def ack(self, seq: int, *, timeout: float | None = None) -> Committed:
        """Say that the state directories are consistent now, and wait until they are committed.

        They must not be changed before this returns. Raises as ``commit`` does.
        """
        return self._ask({"type": "checkpoint.ack", "seq": seq}, seq, timeout)

    def failed(self, seq: int, error: str, kind: str = "") -> None:
        """Say that the request could not be met. ``kind`` as ``errors.kind_of`` gives it."""
        self._clear(seq)
        self._send({"type": "checkpoint.failed", "seq": seq, "error": error, "kind": kind})

    def staged(self, seq: int, seconds: float) -> None:
        """Say that the program goes on: its state was copied within ``seconds``, and is written behind it."""
        self._send({"type": "checkpoint.staged", "seq": seq, "seconds": seconds})

    def restore_done(self, entry: int, seconds: float) -> None:
        """Say that the checkpoint of this log entry is loaded."""
        self._send({"type": "restore.done", "entry": entry, "seconds": seconds})

    def restore_failed(self, entry: int, error: str, *, timeout: float | None = None) -> Welcome:
        """Say that it is damaged; returns the next welcome, with an older checkpoint.

        The wrapper ends the program instead when there is none left: this call then raises ``ConnectionLost``.
        """
        with self._changed:
            self._welcomes.clear()
        self._send({"type": "restore.failed", "entry": entry, "error": error})
        return self._next_welcome(timeout)

    def progress(self, completed: int, total: int | None = None) -> None:
        """Tell how far the program is."""
        self._send({"type": "progress", "completed": completed, "total": total})

    def close(self) -> None:
        """Unsubscribe."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _ask(self, message: dict[str, Any], seq: int | None, timeout: float | None) -> Committed:
        with self._one_commit:
            with self._changed:
                self._answers.pop(seq, None)
            self._clear(seq)
            self._send(message)
            with self._changed:
                self._wait(lambda: seq in self._answers, timeout, "the answer to a commit")
                answer = self._answers.pop(seq)
        if answer["type"] == "checkpoint.committed":
            return Committed(entry=int(answer["entry"]), stop=bool(answer.get("stop")))
        text = str(answer.get("error") or "the wrapper could not commit")
        raise StoreAway(text) if answer.get("kind") == StoreAway.reason else CheckpointFailed(text)

    def _clear(self, seq: int | None) -> None:
        with self._changed:
            if seq is not None and self.request is not None and self.request.seq <= seq:
                self.request = None

    def _wait(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Wait under ``_changed``. Fenced and closed end the wait by their error, unless what was waited for is there."""
        self._changed.wait_for(lambda: ready() or self.fenced is not None or self.closed, timeout)
        if ready():
            return
        if self.fenced is not None:
            raise Fenced(f"a newer attempt (epoch {self.fenced}) holds this run: this one must stop and write nothing")
        if self.closed:
            raise ConnectionLost(f"the wrapper closed the connection while this program waited for {what}")
        raise ConnectionLost(f"the wrapper did not send {what} within {timeout:g} s")

    def _next_welcome(self, timeout: float | None) -> Welcome:
        with self._changed:
            self._wait(lambda: bool(self._welcomes), timeout, "its welcome")
            return self._welcomes.pop(0)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._stream.sendall(encode(message))
        except OSError as error:
            if self.fenced is not None:
                raise Fenced(f"a newer attempt (epoch {self.fenced}) holds this run") from error
            raise ConnectionLost(f"the wrapper is gone ({error.strerror or error})") from error

    def _read(self) -> None:
        pending = b""
        try:
            while data := self._stream.recv(65536):
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    message = decode(line)
                    if message is not None:
                        self._heard(message)
                if len(pending) > MAX_LINE:
                    break
        except OSError:
            pass
        finally:
            with self._changed:
                self.closed = True
                self._changed.notify_all()

    def _heard(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        with self._changed:
            try:
                if kind == "welcome":
                    self.welcome = _welcome(message)
                    self._welcomes.append(self.welcome)
                elif kind == "checkpoint.request":
                    deadline = message.get("deadline")
                    self.request = Request(
                        seq=int(message["seq"]),
                        urgent=bool(message.get("urgent")),
                        deadline=None if deadline is None else float(deadline),
                        reason=str(message.get("reason") or ""),
                        arrived=time.time(),
                    )
                elif kind in ("checkpoint.committed", "checkpoint.failed"):
                    self._answers[message.get("seq")] = message
                    if kind == "checkpoint.committed" and message.get("stop"):
                        self.stop = True
                elif kind == "fenced":
                    self.fenced = int(message["epoch"])
                    self.stop = True
                elif kind == "stop":
                    self.stop = True
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                return  # a message of a version that we don't know: passed over (protocol.py)
            self._changed.notify_all()
        if self.listener is not None:
            self.listener(message)


_shared: Connection | None = None
_looked = False
_lock = threading.Lock()


def shared() -> Connection | None:
    """The process's one connection, made at the first call; None where there is no wrapper."""
    global _shared, _looked
    if _looked:
        return _shared
    with _lock:
        if not _looked:
            _shared = Connection.connect()
            _looked = True
    return _shared


def _after_fork() -> None:
    """A forked worker must neither answer for its parent nor wait for a reading thread that it does not have."""
    global _shared, _looked, _lock
    _shared, _looked, _lock = None, True, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

_taken: list[int] = []


def _take_signals() -> None:
    """Put a handler in place of the "ignored" that the wrapper starts programs with (`run.child` tells why).

    An ignored signal stays ignored in everything that this program starts, so that ``multiprocessing`` could not end its helpers.
    A handler is undone by exec, and by us after a fork. Only in the main thread, and only where nobody has set one.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _nothing)
            signal.siginterrupt(number, False)
            _taken.append(number)


def _nothing(number: int, frame: object) -> None:
    """The wrapper has the same signal, and asks for a checkpoint if one is due."""


def holds(number: int) -> bool:
    """Whether the handler of that signal is the one put here, which does nothing."""
    return signal.getsignal(number) is _nothing


def _give_back_signals() -> None:
    for number in _taken:
        if signal.getsignal(number) is _nothing:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_give_back_signals)
