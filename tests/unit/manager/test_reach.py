"""Reaching nodes: real connections to addresses of this host that are there, or lead nowhere."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_plugin.manager.reach import Reach, _Contact
from tests.fixtures.unmet import need_root


class Host:
    """An address that answers as a machine without listeners does, or that swallows everything."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.target = (address, 6818)
        self.undo: list[str] = []

    # The new before the old is undone: between them a connection would leave this machine, and hang. ("replace": a run that was killed
    # may have left it.)
    def up(self) -> None:
        self._ip("address", "replace", f"{self.address}/32", "dev", "lo")
        self.end()
        self.undo = ["address", "del", f"{self.address}/32", "dev", "lo"]

    def down(self) -> None:
        self._ip("route", "replace", "blackhole", f"{self.address}/32")
        self.end()
        self.undo = ["route", "del", "blackhole", f"{self.address}/32"]

    def end(self) -> None:
        if self.undo:
            self._ip(*self.undo)
        self.undo = []

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    need_root("to make addresses that answer and addresses that do not")
    made = [Host(f"10.75.{os.getpid() % 256}.{n}") for n in (1, 2)]
    yield made
    for host in made:
        host.end()


def running(timeout: float) -> Iterator[Reach]:
    made = Reach(0.05, timeout=timeout)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def reach() -> Iterator[Reach]:
    """It takes nobody for silent because this machine had no time for its thread; these nodes answer, or refuse, at once."""
    yield from running(30.0)


@pytest.fixture
def hasty() -> Iterator[Reach]:
    """For nodes that do neither."""
    yield from running(2.0)


def until(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("not within 60 s")


def test_a_node_falls_silent_and_answers_again(reach: Reach, hosts: list[Host]) -> None:
    node = hosts[0]
    node.up()
    began = time.time()
    reach.watch({"n1": node.target})
    until(lambda: "n1" in reach._contacts)
    assert reach.silent_since() == {}, "a refusal is an answer"
    answers = reach.answering_since()["n1"]
    assert began <= answers <= time.time()
    time.sleep(0.3)
    assert reach.answering_since() == {"n1": answers}, "counted from the first answer"
    node.down()
    until(lambda: "n1" in reach.silent_since())
    since = reach.silent_since()["n1"]
    assert answers < since <= time.time()
    time.sleep(0.3)
    assert reach.silent_since() == {"n1": since}, "counted from the first failure"
    assert reach.answering_since() == {}
    node.up()
    until(lambda: reach.silent_since() == {})
    assert reach.answering_since()["n1"] > since


def test_a_listening_slurmd_is_not_connected_to(reach: Reach) -> None:
    """It would write two lines of errors to its log each time."""
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        slurmd.settimeout(0.5)
        reach.watch({"n1": slurmd.getsockname()})
        until(lambda: "n1" in reach._contacts)
        with pytest.raises(TimeoutError):
            slurmd.accept()
        assert reach.silent_since() == {}


def test_where_the_quiet_port_is_filtered_slurmd_is_asked(hasty: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as filtered,
        socket.create_server(("127.0.0.1", 0)) as slurmd,
    ):
        # A full queue swallows what comes, as a firewall does.
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(filtered.getsockname())
        monkeypatch.setattr("slurm_plugin.manager.reach.QUIET_PORT", filtered.getsockname()[1])
        slurmd.settimeout(60)
        hasty.watch({"n1": slurmd.getsockname()})
        for _ in range(2):
            slurmd.accept()[0].close()
        until(lambda: hasty.silent_since() == {})
        for client in waiting:
            client.close()


def test_nodes_that_can_never_be_reached(hasty: Reach, hosts: list[Host]) -> None:
    hosts[0].down()
    hasty.watch({"n1": hosts[0].target, "n2": ("no-such-host.invalid", 6818)})
    until(lambda: set(hasty.silent_since()) == {"n1", "n2"})
    assert hasty.own_network_suspect()
    hasty.watch({"n1": hosts[0].target})
    assert set(hasty.silent_since()) == {"n1"}
    assert not hasty.own_network_suspect(), "one node alone tells nothing"
    hasty.watch({})
    assert hasty.silent_since() == {}


def test_one_node_that_answers_clears_the_suspicion(reach: Reach, hosts: list[Host]) -> None:
    hosts[0].down()
    hosts[1].up()
    reach.watch({"n1": hosts[0].target, "n2": hosts[1].target})
    until(lambda: len(reach._contacts) == 2)
    assert not reach.own_network_suspect()


def test_a_new_address_or_a_break_begins_the_count_anew(reach: Reach, hosts: list[Host]) -> None:
    hosts[0].down()
    hosts[1].down()
    reach.watch({"n1": hosts[0].target})
    until(lambda: "n1" in reach.silent_since())
    first = reach.silent_since()["n1"]
    reach.watch({"n1": hosts[1].target})
    until(lambda: reach.silent_since().get("n1", first) > first)
    second = reach.silent_since()["n1"]
    with reach._lock:  # as if this process had been stopped for ten minutes
        reach._contacts["n1"] = _Contact(time.monotonic() - 600, second - 600)
    until(lambda: reach.silent_since()["n1"] > second)


def test_a_change_wakes_the_loop(hosts: list[Host]) -> None:
    hosts[0].down()
    woken: list[None] = []
    reach = Reach(0.05, timeout=0.5, wake=lambda: woken.append(None))
    reach.start()
    reach.watch({"n1": hosts[0].target})
    until(lambda: len(woken) == 1)
    time.sleep(0.3)
    assert len(woken) == 1
    reach.stop()


def test_a_machine_without_slurmd_is_silent_once_slurm_doubts_it(reach: Reach, hosts: list[Host]) -> None:
    hosts[0].up()
    target = {"n1": hosts[0].target}
    reach.watch(target)
    until(lambda: "n1" in reach._contacts)
    assert reach.silent_since() == {}, "the machine answers"
    reach.watch(target, doubted={"n1"})
    until(lambda: "n1" in reach.silent_since())
    with socket.create_server(hosts[0].target):
        until(lambda: reach.silent_since() == {})
