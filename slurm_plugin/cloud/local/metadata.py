"""The metadata service inside a machine, as AWS, GCP or Azure have it (the parts that a spot machine needs). Standard library only.

What is answered is decided by functions of (request, machine, control, time); the server only carries it and waits where a client
asked to (GCP's ``wait_for_change``).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slurm_plugin.cloud.local import speak_aws, speak_azure, speak_gcp
from slurm_plugin.cloud.local.http_types import Reply, Request

_SPEAKERS: dict[str, Callable[[Request, Mapping[str, Any], Mapping[str, Any], float], Reply]] = {
    "aws": speak_aws.answer,
    "gcp": speak_gcp.answer,
    "azure": speak_azure.answer,
}
LONGEST_WAIT = 3600.0
LONGEST_BODY = 65536


@dataclass
class Control:
    """What is to happen to the machine, shared between its loop and the service. See ``cloud.py`` for the keys."""

    values: Mapping[str, Any] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Take over new values and wake who waits for a change."""
        with self.changed:
            self.values = values
            self.changed.notify_all()

    def ends_at(self) -> tuple[float, str] | None:
        """When the machine ends (Unix seconds) and why; None while nothing is planned."""
        plans = []
        if (reclaim := self.values.get("reclaim")) is not None:
            plans.append((float(reclaim["deadline"]), "reclaimed"))
        if (end := self.values.get("terminate")) is not None:
            plans.append((float(end["at"]), "terminated"))
        return min(plans, default=None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service for its name: 10 s on a machine that has none.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def serve(address: str, machine: Mapping[str, Any], control: Control, port: int = 80) -> ThreadingHTTPServer:
    """Start the service in threads of its own. Raises ``OSError`` when the address can't be bound."""
    speak = _SPEAKERS[machine["speaks"]]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # A pause between the header's packet and the body's costs a client 40 ms each time.
        wbufsize = -1
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            length = self.headers.get("Content-Length") or "0"
            if not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > LONGEST_BODY:
                self.close_connection = True
                self.send_error(400)
                return
            body = self.rfile.read(int(length))
            parts = urlsplit(self.path)
            request = Request(
                method=self.command,
                path=parts.path,
                query={k: v[-1] for k, v in parse_qs(parts.query, keep_blank_values=True).items()},
                headers={k.lower(): v for k, v in self.headers.items()},
                body=body,
            )
            reply = _wait_for_change(speak, request, machine, control)
            if reply.control is not None:
                control.replace({**control.values, **reply.control})
            data = reply.body.encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle()

    server = _Server((address, port), Handler)
    threading.Thread(target=server.serve_forever, name="metadata", daemon=True).start()
    return server


def _wait_for_change(
    speak: Callable[[Request, Mapping[str, Any], Mapping[str, Any], float], Reply],
    request: Request,
    machine: Mapping[str, Any],
    control: Control,
) -> Reply:
    """Answer now, or for ``wait_for_change`` when the answer differs from the one before (or ``timeout_sec`` have passed)."""
    reply = speak(request, machine, control.values, time.time())
    if not reply.can_wait or request.query.get("wait_for_change", "").lower() != "true":
        return reply
    known = request.query.get("last_etag", reply.headers.get("ETag"))
    until = time.monotonic() + _seconds(request.query.get("timeout_sec", ""))
    with control.changed:
        while True:
            # Anew, also before the first wait: it may have changed before this thread could hear of a change.
            reply = speak(request, machine, control.values, time.time())
            if reply.headers.get("ETag") != known or (left := until - time.monotonic()) <= 0:
                return reply
            control.changed.wait(left)


def _seconds(text: str) -> float:
    try:
        return min(max(float(text), 0.0), LONGEST_WAIT)
    except ValueError:
        return LONGEST_WAIT
