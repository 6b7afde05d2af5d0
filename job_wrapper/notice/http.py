"""Asking a metadata service: one request, one connection, never longer than it was given.

No proxy is ever used (the service is on the host itself, and a proxy's own metadata would be somebody else's). A timeout of the socket
bounds each read; a service that sends a byte a second would hold a plain client for ever, so here the whole answer is bounded.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

LONGEST = 1 << 18
"""Bytes of an answer that are read."""
SLICE = 0.25
"""Seconds after which a read looks whether it is to be given up."""
CONNECT = 2.0

Stopped = Callable[[float], bool]
"""Waits that many seconds; whether to stop."""


class Answer(NamedTuple):
    """Header names in lower case."""

    status: int
    body: str
    headers: Mapping[str, str]


class NoAnswer(OSError):
    """What came is no HTTP."""


class GivenUp(OSError):
    """The one who asked does not want the answer any more."""


class Client:
    """``url``: ``http://host[:port][/prefix]``, or without the scheme. Raises ``ValueError`` when it is no such address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of a metadata service: http://HOST[:PORT]")
        self._host, self._port = parts.hostname, parts.port or 80
        self._prefix = parts.path.rstrip("/")

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], seconds: float, stopped: Stopped = lambda _: False
    ) -> Answer:
        """The answer within ``seconds``. Raises ``OSError`` when there is none."""
        import http.client  # in the watcher's thread: it costs a third of the wrapper's own start

        until = time.monotonic() + seconds
        plain = socket.create_connection((self._host, self._port), min(seconds, CONNECT))
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.sock = _Bounded(plain, until, stopped)
        try:
            connection.request(method, self._prefix + path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(LONGEST).decode("utf-8", "replace")
            return Answer(response.status, body, {name.lower(): value for name, value in response.getheaders()})
        except http.client.HTTPException as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
            plain.close()


class _Bounded:
    """What http.client needs of a socket, with one bound for all of it."""

    def __init__(self, plain: socket.socket, until: float, stopped: Stopped) -> None:
        self._plain, self._until, self._stopped = plain, until, stopped

    def sendall(self, data: bytes) -> None:
        self._plain.settimeout(max(0.001, self._until - time.monotonic()))
        self._plain.sendall(data)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._plain, self._until, self._stopped))

    def close(self) -> None:
        """http.client lets go of it before it has read the body; the one who opened it closes it."""


class _Reader(io.RawIOBase):
    def __init__(self, plain: socket.socket, until: float, stopped: Stopped) -> None:
        self._plain, self._until, self._stopped = plain, until, stopped

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no whole answer in time")
            self._plain.settimeout(min(left, SLICE))
            try:
                return self._plain.recv_into(buffer)
            except TimeoutError:
                if self._stopped(0.0):
                    raise GivenUp("given up") from None
