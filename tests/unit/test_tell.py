from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from job_wrapper.client import Connection, ConnectionLost
from job_wrapper.tell import connected, tell


@pytest.fixture
def full(tmp_path: Path) -> tuple[str, socket.socket]:
    """A wrapper that stands still, and whose backlog is full: its path, and where it will go on listening."""
    path = str(tmp_path / "events")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)
    waiting = []
    try:
        while len(waiting) < 100:
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting[-1].setblocking(False)
            waiting[-1].connect(path)
    except BlockingIOError:
        return path, listener
    raise AssertionError("it is never full")


def test_a_wrapper_that_stands_still_for_a_moment_is_waited_for(full: tuple[str, socket.socket]) -> None:
    path, listener = full
    told = threading.Thread(target=tell, args=(40, 100, path))
    told.start()
    told.join(1)
    assert told.is_alive(), "it waits for room"
    listener.settimeout(60)
    words = b""
    while b"progress" not in words:
        words = listener.accept()[0].makefile("rb").readline()  # the others have left, and nothing comes from them
    told.join(60)
    assert not told.is_alive()


def test_one_that_stands_still_for_good_is_not(full: tuple[str, socket.socket]) -> None:
    with pytest.raises(OSError):
        connected(full[0], 1.0)
    with pytest.raises(ConnectionLost, match="the wrapper does not answer"):
        Connection.connect(full[0], timeout=1.0)


def test_one_that_is_gone_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connected(str(tmp_path / "events"), 60.0)


def test_parts_of_a_second_are_a_bound_too(full: tuple[str, socket.socket]) -> None:
    begun = time.monotonic()
    with pytest.raises(OSError):
        connected(full[0], 0.2)
    assert time.monotonic() - begun >= 0.2


def test_what_is_sent_later_is_waited_for_as_the_caller_says(tmp_path: Path) -> None:
    path = str(tmp_path / "events")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        with connected(path, 1.0) as stream, listener.accept()[0] as wrapper:
            stream.settimeout(None)
            words = b"x" * (1 << 22)  # more than waits for a wrapper that stands still
            sent = threading.Thread(target=stream.sendall, args=(words,))
            sent.start()
            sent.join(3)
            wrapper.settimeout(5)
            heard = 0
            while heard < len(words) and (some := wrapper.recv(1 << 20)):
                heard += len(some)
            sent.join(60)
            assert heard == len(words)
