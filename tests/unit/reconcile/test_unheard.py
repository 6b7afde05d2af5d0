"""Nodes that slurmctld takes for booting since it was started, and whose slurmd runs."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_plugin.actions import SetDown, Terminate
from slurm_plugin.ledger_records import IntentState
from slurm_plugin.reconcile import decide
from slurm_plugin.reconcile.unheard import never_seen
from slurm_plugin.reconcile.view import BootFacts
from tests.unit.reconcile.views import NOW, intent, kinds, machine, node, view

COMING = "ALLOCATED POWERING_UP NOT_RESPONDING"


def facts(
    began: float | None = 50, answers: float | None = 50, listens: float | None = 50, *, health_check: bool = False
) -> BootFacts:
    """In seconds ago."""
    return BootFacts(
        None if began is None else NOW - began,
        None if answers is None else NOW - answers,
        {} if listens is None else {"launch-n1": NOW - listens},
        health_check,
    )


@pytest.mark.parametrize(
    ("age", "boots", "given_up"),
    [
        # The machine was 10 s old when slurmctld began: its slurmd has tried for 10 s at most, and so pauses for no longer.
        (60, facts(), True),
        (60, facts(began=39, answers=39, listens=39), False),
        # Slurm's snapshot, or its start, is not known; nothing listens; slurmd has only just begun.
        (60, facts(began=None), False),
        (60, facts(answers=None), False),
        (60, facts(listens=None), False),
        (60, facts(listens=39), False),
        # slurmd opens its port before it runs HealthCheckProgram, for a minute at most, and registers after that.
        (100, facts(began=95, answers=95, listens=85, health_check=True), False),
        (100, facts(began=95, answers=95, listens=91, health_check=True), True),
        # slurmctld was not restarted: a registration that is refused has ResumeTimeout.
        (49, facts(), False),
        (550, facts(began=9999, answers=500, listens=400), False),
        # It was away for a minute: a slurmd that began meanwhile may try again only after another one.
        (110, facts(), False),
        (110, facts(began=95, answers=95, listens=95), True),
        (120, facts(began=95, answers=50, listens=95), False),
        # It was away for long: slurmd pauses for 128 s at most.
        (900, facts(began=157, answers=157, listens=157), False),
        (900, facts(began=159, answers=159, listens=159), True),
    ],
)
def test_a_node_is_given_up_once_its_slurmd_would_have_registered(age: float, boots: BootFacts, given_up: bool) -> None:
    i = intent("n1", age=age, registered=0.0)
    v = view([node("n1", COMING)], [], [i], [machine(i, address="10.0.0.7")], boots=boots)
    assert kinds(decide(v)) == (["SetDown"] if given_up else [])


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("ALLOCATED", {}),
        ("ALLOCATED POWER_UP POWERED_DOWN", {}),
        ("ALLOCATED POWERING_DOWN", {}),
        (COMING, {"registered": NOW - 55}),
        (COMING, {"state": IntentState.ASKED}),
        (COMING, {"state": IntentState.RETIRED}),
        (COMING, {"launch_id": "another"}),
    ],
)
def test_only_a_machine_that_boots_and_was_never_seen_as_a_node_is(flags: str, changes: dict[str, Any]) -> None:
    i = intent("n1", age=60, **{"registered": 0.0, **changes})
    v = view([node("n1", flags)], [], [i], [machine(i, address="10.0.0.7")], boots=facts())
    assert not [a for a in decide(v) if isinstance(a, SetDown)]
    assert never_seen(v.nodes or {}, [i]) == ([i] if "launch_id" in changes else [])


def test_slurmctld_is_given_no_name_to_look_up_when_it_is_set_down() -> None:
    for i, more in ((intent("n1", age=60, registered=0.0), {}), (intent("n1"), {"stranded_since": {"n1": NOW - 11}})):
        v = view([node("n1", COMING, address="n1")], [], [i], [machine(i)], boots=facts(), **more)
        assert kinds(decide(v)) == ["SetAddress", "SetDown"]


def test_its_machine_is_ended_then_and_its_offering_not_blamed() -> None:
    i = intent("n1", age=60, registered=0.0)
    before = view([node("n1", COMING)], [], [i], [machine(i)], boots=facts())
    (down,) = decide(before)
    assert isinstance(down, SetDown)
    after = view([node("n1", "DOWN POWERING_UP NOT_RESPONDING", down.reason)], [], [i], [machine(i)], boots=facts())
    actions = decide(after)
    assert kinds(actions) == ["Terminate", "PowerDown"]
    assert [a.blame for a in actions if isinstance(a, Terminate)] == [False]
