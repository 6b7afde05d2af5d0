"""What wrapper and program say to each other, and what reaches the small HTTP servers of the manager and of the embedded cloud."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import threading
import traceback
from collections.abc import Callable

from job_wrapper.client import Connection, ConnectionLost
from job_wrapper.curves import Curves
from job_wrapper.curves import read as read_curves
from job_wrapper.errors import SpotburstError
from job_wrapper.run import events as ev
from job_wrapper.run.counters import counters_of
from job_wrapper.run.hear import hear, seconds_of
from job_wrapper.run.machine import Machine
from job_wrapper.run.rules import Rules
from job_wrapper.run.server import Server
from slurm_plugin.cloud.local.metadata import Control, serve
from slurm_plugin.manager.server import Answer
from slurm_plugin.manager.server import Server as PageServer
from tests.fixtures.ports import free_ports
from tests.fuzz.target import Feed, Room, Target

_REF = {"key": "c/12/main/data/e00000001/x.part", "length": 5, "checksum": "xxh3-128:" + "0" * 32}
_PROGRAM = b"\n".join(json.dumps(line).encode() for line in (
    {"type": "checkpoint.subscribe"}, {"type": "checkpoint.ack", "seq": 1}, {"type": "checkpoint.commit", "seq": None, "step": 120, "parts": {"rank-0": _REF}},
    {"type": "checkpoint.staged", "seq": 1, "seconds": 0.8}, {"type": "checkpoint.failed", "seq": 1, "error": "x", "kind": "StoreAway"}, {"type": "restore.done", "entry": 7, "seconds": 1.2},
    {"type": "restore.failed", "entry": 7, "error": "x"}, {"type": "progress", "completed": 120, "total": 1500}, {"type": "metrics", "step": 120, "values": {"loss": 0.31, "lr": None}}, {"type": "signal.ask", "number": 15},
)) + b"\n"  # fmt: skip
_WELCOME = {"type": "welcome", "run": "c/12/main", "uri": "s3://b/p", "endpoint_url": "", "epoch": 3, "data": "c/12/main/data/e00000003", "restore": {"entry": 7, "epoch": 2, "step": 120, "manifest": _REF},
            "interval": 600.0, "patience": 1800.0, "progress": {"completed": 120, "total": 1500}}  # fmt: skip
_WRAPPER = b"\n".join(json.dumps(line).encode() for line in (
    _WELCOME, {"type": "checkpoint.request", "seq": 4, "urgent": True, "deadline": 1795982350.0, "reason": "aws reclaim"}, {"type": "checkpoint.committed", "seq": 4, "entry": 9, "stop": True},
    {"type": "checkpoint.failed", "seq": 4, "error": "x", "kind": "StoreAway"}, {"type": "fenced", "epoch": 5}, {"type": "stop"},
)) + b"\n"  # fmt: skip
_GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:9090\r\nAccept: */*\r\n\r\n"
_METADATA = (
    b"PUT /latest/api/token HTTP/1.1\r\nHost: h\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\nContent-Length: 0\r\n\r\n",
    b"GET /latest/meta-data/spot/instance-action HTTP/1.1\r\nHost: h\r\nX-aws-ec2-metadata-token: 69f5b3c8-00==\r\n\r\n",
    b"GET /computeMetadata/v1/instance/preempted?wait_for_change=true&timeout_sec=0&last_etag=x HTTP/1.1\r\nMetadata-Flavor: Google\r\n\r\n",
    b"GET /computeMetadata/v1/instance/?recursive=true HTTP/1.1\r\nMetadata-Flavor: Google\r\n\r\n",
    b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nMetadata: true\r\n\r\n",
    b'POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nMetadata: true\r\nContent-Length: 39\r\n\r\n{"StartRequests":[{"EventId":"reclaim"}]}',
)


def targets() -> list[Target]:
    """All of them."""
    return [
        Target("program-lines", _wrapper, (_PROGRAM, *_PROGRAM.splitlines(keepends=True))),
        Target("wrapper-lines", _client, (_WRAPPER, *_WRAPPER.splitlines(keepends=True))),
        Target("live-page", _page, (_GET, _GET.replace(b"GET", b"HEAD"), _GET.replace(b"/ H", b"/metrics?x=1 H"))),
        *(
            Target(f"local-metadata-{speaks}", lambda room, speaks=speaks: _metadata(room, speaks), _METADATA)  # type: ignore[misc]
            for speaks in ("aws", "gcp", "azure")
        ),
    ]


def _wrapper(room: Room) -> Feed:
    selector = selectors.DefaultSelector()
    server = Server(selector, str(room.folder / "s" / "events"))
    room.stack.callback(server.close)

    def feed(data: bytes) -> None:
        machine, curves = Machine(Rules()), Curves(lambda: 5.0)
        machine.on(ev.Ready(), 1000.0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as program:
            program.connect(server.path)
            program.setblocking(False)
            left = memoryview(data + b"\n")  # the last line is one, too
            while left:
                with contextlib.suppress(BlockingIOError):
                    left = left[program.send(left) :]
                if not _said(server, machine, curves):
                    break
            program.setblocking(True)
            with contextlib.suppress(OSError):
                program.shutdown(socket.SHUT_WR)
            while _said(server, machine, curves):
                pass
        told = curves.told()
        read_curves(told)
        curves.written(told)

    return feed


def _said(server: Server, machine: Machine, curves: Curves) -> bool:
    """Whether the program is still there."""
    there = True
    for client, message in server.drain():
        for event in hear(client, message):
            machine.on(event, 1000.0)
            there = there and not isinstance(event, ev.Left)
        if message is not None:
            counters_of(message)
            seconds_of(message)
            curves.hear(message)
            server.send(client, message)
    return there


def _client(room: Room) -> Feed:
    def feed(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        connection = Connection(ours)
        threading.Thread(target=lambda: _sent(theirs, json.dumps(_WELCOME).encode() + b"\n" + data + b"\n"), daemon=True).start()  # fmt: skip
        connection._read()
        assert connection.closed
        # A later one may say anything; none may be of another form.
        assert isinstance(connection.welcome.run, str), "the welcome is lost"
        for use in (lambda: connection._next_welcome(0.0), lambda: connection.commit(1, {}, seq=4, timeout=0.0)):
            with contextlib.suppress(SpotburstError, ConnectionLost):
                use()
        connection.take_request()
        ours.close()

    return feed


def _sent(stream: socket.socket, data: bytes) -> None:
    with stream, contextlib.suppress(OSError):
        stream.sendall(data)


def _page(room: Room) -> Feed:
    server = PageServer(free_ports(1)[0], {"/": lambda: Answer("text/plain", b"page"), "/metrics": lambda: Answer("text/plain", b"m")})  # fmt: skip
    server.start()
    room.stack.callback(server.stop)
    return _asked(server.port, _GET, b"page")


def _metadata(room: Room, speaks: str) -> Feed:
    machine = {"speaks": speaks, "instance_id": "i-0123456789abcdef0", "market": "spot", "instance_type": "t", "node": "spot-1", "address": "10.0.0.2", "zone": "a", "region": "r", "project": "p",
               "tags": {}, "launched": 5.0, "nodeset": "spot", "cluster": "demo", "offering": "here/local/a/t/spot"}  # fmt: skip
    reclaim = {"notice_id": "reclaim", "noticed": 5.0, "deadline": 4e9, "action": "terminate"}
    server = serve("127.0.0.1", machine, Control({"reclaim": reclaim}), free_ports(1)[0])
    room.stack.callback(server.server_close)
    room.stack.callback(server.shutdown)
    failed: list[str] = []

    def handle_error(*_: object) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            failed.append("".join(traceback.format_exception(error)))

    server.handle_error = handle_error  # type: ignore[method-assign]
    ask = _asked(server.server_address[1], _METADATA[0 if speaks == "aws" else 2 if speaks == "gcp" else 4], b"HTTP/1.1 200")  # fmt: skip

    def feed(data: bytes) -> None:
        failed.clear()
        ask(data)
        if failed:
            raise RuntimeError(failed[0])

    return feed


def _asked(port: int, good: bytes, answer: bytes) -> Feed:
    """What is sent hostile may be answered as it likes; a good request is answered all the same."""

    def exchange(data: bytes, last: Callable[[socket.socket], None]) -> bytes:
        heard = b""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 4.0) as stream:
            with contextlib.suppress(OSError):
                stream.sendall(data)
                last(stream)
            while more := stream.recv(65536):
                heard += more
        return heard

    def feed(data: bytes) -> None:
        exchange(data, lambda stream: stream.shutdown(socket.SHUT_WR))
        close = good.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        heard = exchange(close, lambda _: None)
        assert answer in heard, f"a good request is answered with {heard[:200]!r}"

    return feed
