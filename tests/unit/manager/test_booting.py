"""What is found out about nodes that boot by Slurm's records: real connections, and when Slurm is asked."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from slurm_plugin.cloud.provider import Instance, InstanceState
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.ledger_records import Intent
from slurm_plugin.manager.booting import ASK_EVERY, ASK_SELDOM, Booting
from slurm_plugin.manager.reach import Reach
from slurm_plugin.manager.say import Once
from slurm_plugin.reconcile import Listing
from slurm_plugin.reconcile.view import BootFacts
from slurm_plugin.slurm.records import Node, Start
from tests.unit.manager.test_reach import until
from tests.unit.reconcile.views import NOW, intent, machine

BEGAN = NOW - 50


class Slurmctld:
    """As far as it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False
        self.health_check = False

    def slurmctld_start(self) -> Start:
        self.asked += 1
        if self.away:
            raise SlurmUnavailable("Unable to contact slurm controller")
        return Start(BEGAN, self.health_check)


@pytest.fixture
def slurmctld() -> Slurmctld:
    return Slurmctld()


@pytest.fixture
def booting(slurmctld: Slurmctld) -> Iterator[Booting]:
    made = Booting(slurmctld, Reach(0.05, timeout=30.0), Once())  # type: ignore[arg-type]
    made.start()
    yield made
    made.stop()


@pytest.fixture
def slurmd() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        yield server


def boots(port: int = 6818, flags: str = "ALLOCATED POWERING_UP") -> dict[str, Node]:
    return {"n1": Node("n1", frozenset(flags.split()), port=port)}


def launch(age: float = 60, registered: float = 0.0) -> Intent:
    return intent("n1", age=age, registered=registered)


def cloud(*machines: Instance) -> dict[str, Listing | None]:
    return {"sim": Listing(NOW, machines)}


def tried(slurmd: socket.socket) -> bool:
    try:
        slurmd.accept()[0].close()
    except TimeoutError:
        return False
    return True


def test_a_slurmd_that_listens_is_noted_by_its_launch_from_when_on_it_does(
    booting: Booting, slurmd: socket.socket
) -> None:
    port = slurmd.getsockname()[1]
    i = launch()
    began = time.time()
    listing = cloud(machine(i, address="127.0.0.1"))

    def listens() -> bool:
        return "launch-n1" in booting.look(NOW, boots(port), [i], listing).listening_since

    until(listens)
    facts = booting.look(NOW + 5, boots(port), [i], listing)
    assert (facts.slurmctld_began, facts.answers_since) == (BEGAN, NOW)
    assert began <= facts.listening_since["launch-n1"] <= time.time()
    slurmd.close()
    until(lambda: not listens())


@pytest.mark.parametrize(
    ("age", "state", "address"),
    [
        (49, InstanceState.RUNNING, "127.0.0.1"),
        (60, InstanceState.RUNNING, ""),
        (60, InstanceState.PENDING, "127.0.0.1"),
        (60, InstanceState.STOPPING, "127.0.0.1"),
    ],
    ids=["younger than slurmctld", "address not known", "not made yet", "ends"],
)
def test_other_machines_are_left_in_peace(
    booting: Booting, slurmd: socket.socket, age: float, state: InstanceState, address: str
) -> None:
    i = launch(age)
    nodes, listing = boots(slurmd.getsockname()[1]), cloud(machine(i, state, address=address))
    booting.look(NOW, nodes, [i], listing)
    assert not tried(slurmd)
    facts = booting.look(NOW, nodes, [i], listing)
    assert (facts.slurmctld_began, facts.listening_since) == (BEGAN, {})


def test_a_machine_whose_slurmd_does_not_listen_yet_does_not_count(booting: Booting) -> None:
    """Though its kernel answers, by a refusal."""
    i = launch()
    with socket.socket() as slurmd:
        slurmd.bind(("127.0.0.1", 0))

        def tried() -> bool:
            facts = booting.look(NOW, boots(slurmd.getsockname()[1]), [i], cloud(machine(i, address="127.0.0.1")))
            assert facts.listening_since == {}
            return "launch-n1" in booting._reach.silent_since()

        until(tried)


def test_slurm_is_asked_seldom_and_more_often_while_such_a_node_boots(booting: Booting, slurmctld: Slurmctld) -> None:
    for nodes, launches in (
        (boots(), []),
        (boots(), [launch(registered=NOW - 55)]),
        (boots(flags="ALLOCATED"), [launch()]),
        ({}, [launch()]),
    ):
        for second in range(int(ASK_SELDOM)):
            booting.look(NOW + second, nodes, launches, cloud())
    assert slurmctld.asked == 1
    booting.look(NOW + ASK_SELDOM - 1, boots(), [launch(age=9 - ASK_SELDOM)], cloud())
    assert slurmctld.asked == 1
    later = NOW + ASK_SELDOM
    for second in range(int(ASK_EVERY) * 2):
        booting.look(later + second, boots(), [launch()], cloud())
    assert slurmctld.asked == 3


def test_after_slurmctld_was_silent_everything_is_asked_anew(booting: Booting, slurmctld: Slurmctld) -> None:
    assert booting.look(NOW, boots(), [launch()], cloud()) == BootFacts(BEGAN, NOW)
    slurmctld.health_check = True
    assert booting.look(NOW + 1, None, [launch()], cloud()).answers_since is None
    assert booting.look(NOW + 2, boots(), [launch()], cloud()) == BootFacts(BEGAN, NOW + 2, health_check=True)
    assert slurmctld.asked == 2


def test_where_slurmctlds_start_can_not_be_had_nothing_is_concluded(slurmctld: Slurmctld) -> None:
    once = Once()
    booting = Booting(slurmctld, Reach(5.0), once)  # type: ignore[arg-type]
    slurmctld.away = True
    assert booting.look(NOW, boots(), [launch()], cloud()).slurmctld_began is None
    assert once.lasting() == ("slurmctld's start",)
    slurmctld.away = False
    assert booting.look(NOW + ASK_EVERY, boots(), [launch()], cloud()).slurmctld_began == BEGAN
    assert once.lasting() == ()
