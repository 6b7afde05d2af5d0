"""A small HTTP server on 127.0.0.1: what the manager shows, and nothing that changes anything.

Any user of this machine can reach it, so it must bear any of them: few connections at a time, each with a time limit, requests that are read but for their
first line and their Host. Where all are taken, the one that has been longest without a whole request makes room, so that nobody can keep others out by
asking slowly. A browser is kept from reading it for another site: the Host must be this machine's own name for itself (DNS rebinding), and no
answer may be read across origins.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
CONNECTIONS = 16
"""At a time. One more takes the place of one that has not asked yet; where all have, it is closed unheard."""
ROOM = 1.0
"""Seconds within which a connection that is closed has made room."""
PATIENCE = 10.0
"""Seconds that a client may take for its request, and for reading a piece of the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``policy``: its Content-Security-Policy."""

    kind: str
    content: bytes
    policy: str = "default-src 'none'"


Answers = Mapping[str, Callable[[], Answer]]
"""By path."""


class Server:
    """Serves ``answers`` in threads of its own. Raises ``OSError`` where the port can't be had."""

    def __init__(self, port: int, answers: Answers) -> None:
        self._http = _Http((ADDRESS, port), answers)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.2,), name="page", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let go of the port. Connections that are open end by themselves."""
        if self._thread.is_alive():
            self._http.shutdown()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], answers: Answers) -> None:
        self.answers = answers
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._asking: dict[Any, None] = {}
        """Connections whose request has not come as a whole, the oldest first."""
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the look-up of this machine's name, which may hang."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._close_oldest()
            if not self._free.acquire(timeout=ROOM):
                self.shutdown_request(request)
                return
        with self._lock:
            self._asking[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.has_asked(request)
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._free.release()

    def has_asked(self, request: Any) -> None:
        """It is answered now, or over: it makes room for nobody."""
        with self._lock:
            self._asking.pop(request, None)

    def _close_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._asking), None)
            if oldest is None:
                return
            del self._asking[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and goes

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to tell of."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = PATIENCE
    server_version, sys_version = "spotburst", ""

    def do_GET(self) -> None:
        """The answer of its path."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """The same without its content."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        self.server.has_asked(self.connection)
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host.lower() not in HOSTS:
            self._refuse(
                HTTPStatus.FORBIDDEN, "ask for it as http://127.0.0.1 or http://localhost (through a tunnel, too)"
            )
            return
        make = self.server.answers.get(self.path.partition("?")[0])
        if make is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"there are: {', '.join(sorted(self.server.answers))}")
            return
        try:
            answer = make()
        except Exception:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "it could not be made; the manager's log tells why")
            return
        self._send(HTTPStatus.OK, answer, body)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(status, Answer("text/plain; charset=utf-8", f"spotburst: {text}\n".encode()), True)

    def _send(self, status: HTTPStatus, answer: Answer, body: bool) -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in (
            ("Content-Type", answer.kind),
            ("Content-Length", str(len(answer.content))),
            ("Content-Security-Policy", f"{answer.policy}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if body:
            with contextlib.suppress(OSError):
                self.wfile.write(answer.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
