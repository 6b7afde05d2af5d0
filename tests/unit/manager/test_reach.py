"""Reaching nodes: real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_plugin.manager.reach import Reach, _Contact


@pytest.fixture
def reach() -> Iterator[Reach]:
    made = Reach(0.05, timeout=0.5)
    made.start()
    yield made
    made.stop()


def listen(port: int = 0) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("not within 8 s")


def test_a_node_falls_silent_when_its_port_closes_and_answers_again(reach: Reach) -> None:
    server = listen()
    port = server.getsockname()[1]
    reach.watch({"n1": ("127.0.0.1", port)})
    until(lambda: "n1" in reach._contacts)
    assert reach.silent_since() == {}
    server.close()
    until(lambda: "n1" in reach.silent_since())
    since = reach.silent_since()["n1"]
    assert abs(since - time.time()) < 5
    time.sleep(0.3)
    assert reach.silent_since() == {"n1": since}, "counted from the first failure"
    server = listen(port)
    until(lambda: reach.silent_since() == {})
    server.close()


def test_a_node_that_can_never_be_reached_and_one_without_an_address(reach: Reach) -> None:
    reach.watch({"n1": ("127.0.0.1", 1), "n2": ("no-such-host.invalid", 6818)})
    until(lambda: set(reach.silent_since()) == {"n1", "n2"})
    assert reach.own_network_suspect()
    reach.watch({"n1": ("127.0.0.1", 1)})
    assert set(reach.silent_since()) == {"n1"}
    assert not reach.own_network_suspect(), "one node alone tells nothing"
    reach.watch({})
    assert reach.silent_since() == {}


def test_one_node_that_answers_clears_the_suspicion(reach: Reach) -> None:
    server = listen()
    reach.watch({"n1": ("127.0.0.1", 1), "n2": server.getsockname()})
    until(lambda: len(reach._contacts) == 2)
    assert not reach.own_network_suspect()
    server.close()


def test_a_new_address_or_a_break_begins_the_count_anew(reach: Reach) -> None:
    reach.watch({"n1": ("127.0.0.1", 1)})
    until(lambda: "n1" in reach.silent_since())
    first = reach.silent_since()["n1"]
    reach.watch({"n1": ("127.0.0.1", 2)})
    until(lambda: reach.silent_since().get("n1", first) > first)
    second = reach.silent_since()["n1"]
    with reach._lock:  # as if this process had been stopped for a minute
        reach._contacts["n1"] = _Contact(time.monotonic() - 60, second - 60)
    until(lambda: reach.silent_since()["n1"] > second)


def test_a_change_wakes_the_loop() -> None:
    woken: list[None] = []
    reach = Reach(0.05, timeout=0.5, wake=lambda: woken.append(None))
    reach.start()
    reach.watch({"n1": ("127.0.0.1", 1)})
    until(lambda: len(woken) == 1)
    time.sleep(0.3)
    assert len(woken) == 1
    reach.stop()
