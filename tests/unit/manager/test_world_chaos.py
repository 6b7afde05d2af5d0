"""The manager over a simulated Slurm and cloud, whatever happens and wherever it is killed."""

from __future__ import annotations

import os
import random

import pytest

from slurm_plugin.cloud.provider import RefusalKind
from tests.unit.manager.checks import NAMES, Make, check_always, check_settled, running, states, until
from tests.unit.manager.harness import Manager


def chaos(manager: Manager, dice: random.Random) -> None:
    """One thing that may happen at any time."""
    world, cloud = manager.world, manager.world.cloud
    living = cloud.living()
    what = dice.randrange(14)
    if what == 0 and living:
        cloud.vanish(dice.choice(living))
    elif what == 1 and living:
        cloud.vanish(dice.choice(living), forget=True)
    elif what == 2 and living:
        machine = dice.choice(living)
        machine.reclaim = world.clock() + dice.choice([0, 2, 30, 120])
    elif what == 3:
        for machine in living:
            machine.reclaim = None
    elif what == 4:
        cloud.unreachable = not cloud.unreachable
    elif what == 5:
        world.slurm.unreachable = not world.slurm.unreachable
    elif what == 6:
        cloud.refusals = [dice.choice(list(RefusalKind)) for _ in range(dice.randrange(4))]
    elif what == 7:
        cloud.lose_answers = dice.randrange(3)
    elif what == 8:
        up = [n.name for n in world.slurm.node.values() if "POWERED_DOWN" not in n.flags]
        manager.reach.silent = {n: world.clock() - dice.choice([0, 70]) for n in up[: dice.randrange(len(up) + 1)]}
    elif what == 9:
        world.slurm.unreachable, was = False, world.slurm.unreachable
        state = dice.choice(["power_down", "power_up", "power_down_force"])
        at, world.killer.at = world.killer.at, -1
        world.slurm.update_nodes([dice.choice(NAMES)], state=state)
        world.killer.at, world.slurm.unreachable = at, was
    elif what == 10:
        cloud.boots_in = lambda: dice.choice([1.0, 5.0, 30.0, 200.0])
    elif what == 11:
        cloud.linger = lambda: dice.choice([0.0, 3.0, 30.0])
    elif what == 12:
        cloud.listing_lag = lambda: dice.choice([0.0, 0.0, 20.0])
    elif what == 13:
        world.killer.count, world.killer.at = 0, dice.randrange(1, 60)


def calm(manager: Manager) -> None:
    world = manager.world
    world.cloud.unreachable = world.slurm.unreachable = False
    world.cloud.refusals, world.cloud.lose_answers = [], 0
    world.cloud.boots_in, world.cloud.linger, world.cloud.listing_lag = lambda: 5.0, lambda: 3.0, lambda: 0.0
    world.killer.at = -1
    manager.reach.silent = {}
    for machine in world.cloud.living():
        if machine.reclaim is not None and machine.reclaim > world.clock() + 10:
            machine.reclaim = None


@pytest.mark.parametrize("seed", range(int(os.environ.get("SPOTBURST_CHAOS_SEEDS", "16"))))
def test_chaos_ends_with_every_job_done_and_no_machine_unknown(make: Make, seed: int) -> None:
    m = make(seed=seed, idle_on_suspend=bool(seed % 2))
    dice = random.Random(seed)
    jobs = [m.world.slurm.submit(dice.randrange(20, 200), nodes=dice.choice([1, 1, 2])) for _ in range(3)]
    for _ in range(250):
        if dice.random() < 0.15:
            chaos(m, dice)
        m.step()
        check_always(m)
    calm(m)
    until(m, lambda: all(states(m, j) == {"COMPLETED"} for j in jobs), 8000)
    m.run(600)
    check_settled(m)


def test_killed_at_every_single_act_of_a_launch_a_loss_and_a_notice(make: Make) -> None:
    """The whole story once for each act in it, killed there; some hundred stories."""
    at, finished = 0, False
    while not finished:
        at += 1
        m = make()
        m.world.killer.at = at
        job = m.world.slurm.submit(60)
        until(m, running(m, job), 200)
        m.world.cloud.vanish(m.world.cloud.living()[0])
        until(m, lambda m=m, job=job: m.world.slurm.job[job].record.restart_count == 1, 20)  # type: ignore[misc]
        until(m, running(m, job), 200)
        m.world.cloud.living(m.world.slurm.job[job].record.nodes[0])[0].reclaim = m.world.clock() + 20
        until(m, lambda m=m, job=job: states(m, job) == {"COMPLETED"}, 500)  # type: ignore[misc]
        m.run(40)
        check_settled(m)
        assert len(m.world.cloud.machine) <= 4
        finished = m.deaths == 0
        m.close()
        m.close = lambda: None  # type: ignore[method-assign]
    assert at > 50
