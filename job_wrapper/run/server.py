"""The events socket's wrapper end: connections, lines, and who has subscribed. Used from the loop's thread only."""

from __future__ import annotations

import binascii
import contextlib
import errno
import os
import re
import selectors
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from job_wrapper.errors import UsageError
from job_wrapper.protocol import MAX_LINE, decode, encode

MAX_CLIENTS = 256
_BACKLOG = 64
_MAX_UNSENT = 4 << 20
"""A client that does not read is closed when this much waits for it: it must not hold up the wrapper."""


def socket_path(environ: Mapping[str, str] = os.environ) -> str:
    """Where a wrapper's socket will be: in a folder of its own under TMPDIR, or under /tmp where that can't be used.

    A socket's path has room for 107 bytes only. Job scripts set TMPDIR to folders that are not on every node.
    """
    base = environ.get("TMPDIR", "")
    if not base.startswith("/") or len(base) >= 60 or not os.access(base, os.W_OK | os.X_OK):
        base = "/tmp"  # noqa: S108
    return str(Path(base) / f"{_prefix()}{os.urandom(8).hex()}" / "events")


def _prefix() -> str:
    """Of this host's folders: TMPDIR may be on a shared file system, where another host's sockets look dead from here."""
    return f"spotburst-{binascii.crc32(socket.gethostname().encode()):08x}-"


_YOUNG = 60.0
"""Seconds for which a folder is left alone: its wrapper may not listen yet."""


def remove_dead(base: Path, now: float) -> list[Path]:
    """Remove the sockets of this user's wrappers on this host in ``base`` that were killed together with their guards; returns their folders.

    A socket is dead when nobody listens. Nothing else is ever removed: a folder that holds more stays.
    """
    removed = []
    ours = re.compile(rf"{_prefix()}[0-9a-f]{{16}}\Z")
    for folder in base.iterdir():
        try:
            info = folder.lstat()
            if not ours.match(folder.name) or not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
                continue
            if now - info.st_mtime < _YOUNG:
                continue
            path = folder / "events"
            if path.is_socket():
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
                    if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                        continue
                path.unlink()
            folder.rmdir()
        except OSError:
            continue  # gone meanwhile, or not empty
        removed.append(folder)
    return removed


class _Connection:
    __slots__ = ("number", "pending", "stream", "subscribed", "unsent")

    def __init__(self, number: int, stream: socket.socket) -> None:
        self.number = number
        self.stream = stream
        self.pending = b""
        self.unsent = b""
        self.subscribed = False


class Server:
    """Listens in a folder that only its user can enter. ``handle`` and ``drain`` are called by the loop."""

    def __init__(self, selector: selectors.BaseSelector, path: str) -> None:
        """Raises ``UsageError`` where the socket can't be made."""
        self._selector = selector
        self.path = path
        self._folder = Path(path).parent
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._folder.mkdir(mode=0o700)
            self._listener.bind(self.path)
        except OSError as error:
            self._listener.close()
            raise UsageError(
                f"{self.path}: can't be made: {error.strerror}; set TMPDIR to a folder that can be written"
            ) from error
        self._listener.listen(_BACKLOG)
        self._connections: dict[int, _Connection] = {}
        self._next = 1
        selector.register(self._listener, selectors.EVENT_READ, self)

    def handle(self, key: selectors.SelectorKey, mask: int) -> list[tuple[int, dict[str, Any] | None]]:
        """What came on one of its descriptors: (client, message), or (client, None) when it is gone."""
        if key.fileobj is self._listener:
            self._accept()
            return []
        connection = self._connections.get(key.data[1])
        if connection is None:
            return []
        if mask & selectors.EVENT_WRITE:
            if not self._flush(connection):
                return [self._drop(connection)]
            self._watch(connection)
        return self._read(connection) if mask & selectors.EVENT_READ else []

    def drain(self) -> list[tuple[int, dict[str, Any] | None]]:
        """What programs have said and the loop has not read yet: before their end is taken note of."""
        self._accept()
        heard = []
        for connection in list(self._connections.values()):
            heard += self._read(connection)
        return heard

    def send(self, client: int, message: dict[str, Any]) -> None:
        """Without waiting; a client that is gone is passed over (that it is, the next read tells)."""
        connection = self._connections.get(client)
        if connection is None:
            return
        connection.unsent += encode(message)
        if not self._flush(connection) and len(connection.unsent) > _MAX_UNSENT:
            with contextlib.suppress(OSError):
                connection.stream.shutdown(socket.SHUT_RDWR)
        self._watch(connection)

    def broadcast(self, message: dict[str, Any]) -> None:
        """To all that have subscribed."""
        for connection in list(self._connections.values()):
            if connection.subscribed:
                self.send(connection.number, message)

    def subscribe(self, client: int) -> None:
        """From now on broadcasts reach it."""
        if client in self._connections:
            self._connections[client].subscribed = True

    def close(self) -> None:
        """Close everything and remove the folder."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            Path(self.path).unlink()
            self._folder.rmdir()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            if len(self._connections) >= MAX_CLIENTS:
                stream.close()
                continue
            stream.setblocking(False)
            connection = _Connection(self._next, stream)
            self._next += 1
            self._connections[connection.number] = connection
            self._selector.register(stream, selectors.EVENT_READ, (self, connection.number))

    def _read(self, connection: _Connection) -> list[tuple[int, dict[str, Any] | None]]:
        heard: list[tuple[int, dict[str, Any] | None]] = []
        while True:
            try:
                data = connection.stream.recv(65536)
            except BlockingIOError:
                return heard
            except OSError:
                data = b""
            if not data:
                return [*heard, self._drop(connection)]
            *lines, connection.pending = (connection.pending + data).split(b"\n")
            messages = (decode(line) for line in lines if len(line) <= MAX_LINE)
            heard += [(connection.number, message) for message in messages if message is not None]
            if len(connection.pending) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
                return [*heard, self._drop(connection)]

    def _flush(self, connection: _Connection) -> bool:
        """Send what can be sent; False when the client is gone or does not read."""
        try:
            while connection.unsent:
                sent = connection.stream.send(connection.unsent)
                connection.unsent = connection.unsent[sent:]
        except BlockingIOError:
            return len(connection.unsent) <= _MAX_UNSENT
        except OSError:
            return False
        return True

    def _watch(self, connection: _Connection) -> None:
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.modify(connection.stream, mask, (self, connection.number))

    def _drop(self, connection: _Connection) -> tuple[int, None]:
        self._connections.pop(connection.number, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.stream)
        connection.stream.close()
        return connection.number, None
