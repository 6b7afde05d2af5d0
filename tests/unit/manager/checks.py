"""What tests of the manager over the simulated world look at, wait for, and hold true."""

from __future__ import annotations

from collections.abc import Callable

from slurm_plugin.ledger_records import IntentState
from slurm_plugin.reconcile import decide
from tests.unit.manager.harness import Manager

NAMES = ("n1", "n2", "n3", "n4")
Make = Callable[..., Manager]


def states(manager: Manager, job: int) -> frozenset[str]:
    return manager.world.slurm.job[job].record.states


def until(manager: Manager, true: Callable[[], bool], seconds: int = 300) -> int:
    for passed in range(seconds):
        if true():
            return passed
        manager.step()
        check_always(manager)
    raise AssertionError(f"not within {seconds} s: {manager.world.slurm.nodes()} {manager.world.slurm.jobs()}")


def check_always(manager: Manager) -> None:
    """What must hold at every moment: one machine a name."""
    for name in manager.world.slurm.node:
        serving = [m for m in manager.world.cloud.living(name) if m.ending is None]
        assert len(serving) <= 1, f"{name} has two machines: {serving}"


def check_settled(manager: Manager) -> None:
    """What must hold once nothing happens any more: every machine is a node that Slurm shows up, every node is usable, nothing to do."""
    world = manager.world
    for node in world.slurm.nodes():
        assert not node.has("DOWN", "DRAIN", "POWER_DOWN", "POWERING_UP", "POWERING_DOWN"), node
        machines = world.cloud.living(node.name)
        assert len(machines) == (0 if node.has("POWERED_DOWN") else 1), (node, machines)
    view = manager.look()
    assert {i.launch_id for i in view.intents} == {m.request.launch_id for m in world.cloud.living()}
    assert all(i.state is IntentState.LIVE for i in view.intents)
    assert not view.notices
    assert not view.replacements
    assert not view.requests
    assert decide(view) == ()


def running(manager: Manager, job: int) -> Callable[[], bool]:
    return lambda: states(manager, job) == {"RUNNING"}
