"""The events socket is its user's alone, and whoever floods it costs the wrapper little memory and keeps no other client from being heard."""

from __future__ import annotations

import resource
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.protocol import MAX_LINE, encode
from job_wrapper.run.server import MAX_CLIENTS, Server, remove_dead
from tests.fixtures.as_user import as_user
from tests.fixtures.unmet import need_root


@pytest.fixture
def server() -> Iterator[Server]:
    """In a folder that every user may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="spotburst-test-", dir="/tmp") as name:
        Path(name).chmod(0o1777)
        with selectors.DefaultSelector() as selector:
            made = Server(selector, f"{name}/spotburst-x/events")
            yield made
            made.close()


def connect(path: str) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(5)
    stream.connect(path)
    return stream


def heard(server: Server) -> list[dict[str, Any]]:
    return [message for _, message in server.drain() if message is not None]


def test_no_other_user_reaches_it_or_moves_it(server: Server) -> None:
    need_root("to be two users")
    folder = Path(server.path).parent
    assert as_user(1003, lambda: folder.stat()) == 0
    assert as_user(1003, lambda: connect(server.path).close()) != 0
    assert as_user(1003, lambda: list(folder.iterdir())) != 0
    assert as_user(1003, lambda: folder.rename(folder.with_name("away"))) != 0
    assert as_user(1003, lambda: remove_dead(folder.parent, time.time() + 3600)) == 0
    connect(server.path).close()


def test_a_flood_is_cut_off_and_others_are_heard(server: Server) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood = []
    for _ in range(MAX_CLIENTS + 50):
        flood.append(connect(server.path))
        server.drain()
    for stream in flood[:20]:
        try:
            for _ in range(3 * MAX_LINE // 65536):  # a line that does not end
                stream.sendall(b"[" * 65536)
                server.drain()
        except OSError:
            continue
    assert heard(server) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "KiB"
    other = connect(server.path)
    for line in (b"\xff\xfe\n", b'{"type":7}\n', b"[" * 50_000 + b"\n", b"{}\n"):
        other.sendall(line)
        assert heard(server) == []
    other.sendall(encode({"type": "progress"}))
    assert heard(server) == [{"type": "progress"}]
    for stream in (*flood, other):
        stream.close()
