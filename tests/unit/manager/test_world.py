"""The manager over a simulated Slurm and cloud: what becomes of jobs, nodes and machines, whatever happens and wherever it is killed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.actions import RememberJob
from slurm_plugin.cloud.provider import InstanceState, RefusalKind
from slurm_plugin.ledger_records import IntentState
from slurm_plugin.reconcile import decide
from tests.unit.manager.harness import Manager, policy
from tests.unit.manager.world import REQUEUE_DELAY, World

NAMES = ("n1", "n2", "n3", "n4")
Make = Callable[..., Manager]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Manager] = []

    def build(names: tuple[str, ...] = NAMES, seed: int = 0, idle_on_suspend: bool = True, **rules: object) -> Manager:
        folder = tmp_path / f"m{len(made)}"
        world = World(names, folder, seed, idle_on_suspend)
        made.append(Manager(world, policy(names, **rules), folder / "ledger.db"))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for manager in made:
        manager.close()


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


def test_a_job_bursts_runs_and_its_node_goes_off_again(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(60)
    until(m, lambda: states(m, job) == {"COMPLETED"})
    until(m, lambda: not m.world.cloud.living(), 600)
    until(m, lambda: all("POWERED_DOWN" in n.flags for n in m.world.slurm.node.values()))
    m.run(5)
    check_settled(m)
    assert len(m.world.cloud.machine) == 1


def test_a_lost_machine_is_noticed_and_its_job_runs_elsewhere_long_before_its_begin_time(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(300)
    until(m, running(m, job))
    lost = m.world.slurm.job[job].record.nodes[0]
    m.world.cloud.vanish(m.world.cloud.living(lost)[0])
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 3)
    took = until(m, running(m, job), int(REQUEUE_DELAY) - 60)
    assert took < 20
    assert m.world.slurm.job[job].record.nodes != (lost,)
    assert "replacement" in m.world.slurm.job[job].record.comment
    m.run(200)
    assert len(m.world.cloud.machine) == 2  # one replacement, not two
    until(m, lambda: states(m, job) == {"COMPLETED"}, 400)
    m.run(400)
    check_settled(m)


def test_a_stopped_machine_is_lost_at_once_and_deleted(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(300)
    until(m, running(m, job))
    machine = m.world.cloud.living()[0]
    m.world.cloud.vanish(machine, stopped=True)
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 3)
    until(m, lambda: not machine.stopped, 20)


def test_a_notice_prepares_one_replacement_and_the_requeued_job_starts_on_it(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(400)
    until(m, running(m, job))
    old = m.world.slurm.job[job].record.nodes[0]
    machine = m.world.cloud.living()[0]
    machine.reclaim = m.world.clock() + 120
    until(m, lambda: "DRAIN" in m.world.slurm.node[old].flags, 4)
    m.run(30)
    assert states(m, job) == {"RUNNING"}, "the job goes on until it requeues itself"
    others = [x for x in m.world.cloud.living() if x is not machine]
    assert len(others) == 1
    assert others[0].request.offering.zone == "b", "not in the zone that just reclaimed"
    m.world.slurm.requeue(str(job))
    assert until(m, running(m, job), 20) <= 3
    assert m.world.slurm.job[job].record.nodes == (others[0].request.node,)
    until(m, lambda: "POWERED_DOWN" in m.world.slurm.node[old].flags, 60)
    until(m, lambda: states(m, job) == {"COMPLETED"}, 500)
    m.run(400)
    check_settled(m)


def test_a_withdrawn_notice_releases_the_replacement_and_the_job_goes_on(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(400)
    until(m, running(m, job))
    node = m.world.slurm.job[job].record.nodes[0]
    machine = m.world.cloud.living()[0]
    machine.reclaim = m.world.clock() + 120
    m.run(20)
    machine.reclaim = None
    m.run(60)
    assert states(m, job) == {"RUNNING"}
    assert m.world.slurm.job[job].record.restart_count == 0
    assert "DRAIN" not in m.world.slurm.node[node].flags
    assert m.world.cloud.living() == [machine]
    m.run(10)
    check_settled(m)


def test_the_agents_drain_is_a_notice_and_its_undrain_withdraws_it(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(400)
    until(m, running(m, job))
    node = m.world.slurm.job[job].record.nodes[0]
    m.world.slurm.update_nodes([node], state="drain", reason="spotburst: aws reclaim by 2027-01-15T09:00:00Z")
    m.run(20)
    assert len(m.world.cloud.living()) == 2
    assert len(m.look().notices) == 1
    m.world.slurm.update_nodes([node], state="undrain")
    m.run(60)
    assert len(m.world.cloud.living()) == 1
    check_settled(m)


def test_an_administrators_drain_and_down_are_left_alone(make: Make) -> None:
    m = make()
    m.world.slurm.update_nodes(["n1"], state="down", reason="broken fan, Ann")
    m.world.slurm.update_nodes(["n2"], state="drain", reason="testing")
    m.run(60)
    assert m.world.slurm.node["n1"].down
    assert "DRAIN" in m.world.slurm.node["n2"].flags
    assert not m.world.cloud.machine


def test_a_silent_node_gets_a_replacement_then_is_set_down(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(400)
    until(m, running(m, job))
    node = m.world.slurm.job[job].record.nodes[0]
    machine = m.world.cloud.living()[0]
    m.reach.silent[node] = m.world.clock()
    m.run(19)
    assert len(m.world.cloud.living()) == 1
    m.run(20)
    assert len(m.world.cloud.living()) == 2
    assert states(m, job) == {"RUNNING"}
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 30)
    until(m, lambda: not machine.alive(), 10)
    until(m, running(m, job), 20)


def test_a_node_that_answers_again_keeps_its_job(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(400)
    until(m, running(m, job))
    m.reach.silent[m.world.slurm.job[job].record.nodes[0]] = m.world.clock()
    m.run(40)
    m.reach.silent.clear()
    m.run(60)
    assert m.world.slurm.job[job].record.restart_count == 0
    assert len(m.world.cloud.living()) == 1
    check_settled(m)


def test_all_nodes_silent_at_once_sets_none_down(make: Make) -> None:
    m = make()
    jobs = [m.world.slurm.submit(900) for _ in range(2)]
    for job in jobs:
        until(m, running(m, job))
    m.reach.suspect = True
    m.reach.silent = {m.world.slurm.job[j].record.nodes[0]: m.world.clock() for j in jobs}
    m.run(200)
    assert all(m.world.slurm.job[j].record.restart_count == 0 for j in jobs)


def test_no_capacity_leads_to_the_next_offering_in_the_same_pass(make: Make) -> None:
    m = make()
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY]
    job = m.world.slurm.submit(20)
    until(m, running(m, job), 60)
    assert [x.request.offering.zone for x in m.world.cloud.machine.values()] == ["b"]
    assert m.world.cloud.calls == 2
    assert m.world.slurm.job[job].record.restart_count == 0


@pytest.mark.parametrize("idle_on_suspend", [True, False])
def test_no_capacity_anywhere_leaves_the_job_queued_and_the_nodes_in_the_pool(
    make: Make, idle_on_suspend: bool
) -> None:
    m = make(idle_on_suspend=idle_on_suspend)
    m.world.cloud.refusals = [RefusalKind.NO_CAPACITY] * 10
    job = m.world.slurm.submit(20)
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 60)
    assert "no capacity" in m.world.slurm.job[job].record.comment
    until(m, lambda: states(m, job) == {"COMPLETED"}, 3000)
    m.run(600)
    check_settled(m)


def test_try_later_asks_the_same_offering_again_and_cools_nothing(make: Make) -> None:
    m = make()
    m.world.cloud.refusals = [RefusalKind.TRY_LATER] * 3
    job = m.world.slurm.submit(20)
    until(m, running(m, job), 80)
    assert [x.request.offering.zone for x in m.world.cloud.machine.values()] == ["a"]
    assert all(s.ready_at() == 0 for s in m.ledger.offerings().values())
    assert len(m.ledger.intents(closed=True)) == 1


@pytest.mark.parametrize("kind", [RefusalKind.QUOTA, RefusalKind.MISTAKE])
def test_quota_and_mistakes_are_said_to_the_user(make: Make, kind: RefusalKind) -> None:
    m = make()
    m.world.cloud.refusals = [kind] * 2
    job = m.world.slurm.submit(20)
    m.run(20)
    assert kind.value in " ".join(e.text for e in m.ledger.events(job=job))
    assert "spotburst: " in m.world.slurm.job[job].record.comment


def test_a_machine_that_never_registers_is_ended_and_its_node_comes_back(make: Make) -> None:
    m = make()
    m.world.cloud.boots_in = lambda: 1e9 if len(m.world.cloud.machine) < 1 else 5.0
    job = m.world.slurm.submit(20)
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 150)
    until(m, lambda: not any(x.boots_in > 1e6 for x in m.world.cloud.living()), 20)
    until(m, lambda: states(m, job) == {"COMPLETED"}, 600)
    m.run(600)
    check_settled(m)


def test_a_name_is_used_again_only_when_its_old_machine_is_gone(make: Make) -> None:
    m = make(("n1",))
    m.world.cloud.linger = lambda: 40.0
    job = m.world.slurm.submit(100)
    until(m, running(m, job))
    old = m.world.cloud.living()[0]
    m.world.slurm.update_nodes(["n1"], state="power_down_force")
    until(m, lambda: len(m.world.cloud.machine) == 2, 400)
    assert old.gone is not None
    assert next(x for x in m.world.cloud.machine.values() if x is not old).born >= old.gone


def test_a_machine_missing_from_one_listing_is_not_replaced(make: Make) -> None:
    m = make()
    m.world.cloud.listing_lag = lambda: 25.0
    job = m.world.slurm.submit(100)
    until(m, lambda: states(m, job) == {"COMPLETED"})
    assert len(m.world.cloud.machine) == 1


def test_a_machine_that_vanishes_from_the_listing_is_lost(make: Make) -> None:
    m = make(orphan_grace=30.0)
    job = m.world.slurm.submit(300)
    until(m, running(m, job))
    m.run(30)
    m.world.cloud.vanish(m.world.cloud.living()[0], forget=True)
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 10)


def test_an_unreachable_cloud_or_slurm_is_never_nothing_there(make: Make) -> None:
    m = make()
    jobs = [m.world.slurm.submit(2000) for _ in range(2)]
    for job in jobs:
        until(m, running(m, job))
    m.world.cloud.unreachable = True
    m.run(300)
    m.world.slurm.unreachable = True
    m.run(100)
    m.world.cloud.unreachable = False
    m.run(300)
    m.world.slurm.unreachable = False
    m.run(30)
    assert all(states(m, j) == {"RUNNING"} and m.world.slurm.job[j].record.restart_count == 0 for j in jobs)
    assert len(m.world.cloud.machine) == 2


def test_a_lost_answer_makes_no_second_machine(make: Make) -> None:
    m = make()
    m.world.cloud.lose_answers = 3
    m.world.cloud.listing_lag = lambda: 30.0
    job = m.world.slurm.submit(20)
    until(m, lambda: states(m, job) == {"COMPLETED"})
    assert len(m.world.cloud.machine) == 1


def test_a_lost_ledger_is_rebuilt_from_tags(make: Make) -> None:
    m = make()
    jobs = [m.world.slurm.submit(500) for _ in range(2)]
    for job in jobs:
        until(m, running(m, job))
    m.close()
    m.path.write_bytes(b"not a database at all, but long enough to be taken for one" * 100)
    for suffix in ("-wal", "-shm"):
        Path(f"{m.path}{suffix}").unlink(missing_ok=True)
    m.start()
    m.run(5)
    assert {i.launch_id for i in m.look().intents} == set(m.world.cloud.machine)
    assert list(m.path.parent.glob("ledger.db.damaged-*"))
    for job in jobs:
        until(m, lambda job=job: states(m, job) == {"COMPLETED"}, 1000)  # type: ignore[misc]
    assert len(m.world.cloud.machine) == 2
    m.run(600)
    check_settled(m)


def test_an_unknown_machine_of_the_cluster_is_ended(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(20)
    until(m, running(m, job))
    machine = m.world.cloud.living()[0]
    m.world.slurm.node.pop(machine.request.node)
    m.world.slurm.job.clear()
    m.run(100)
    assert machine.alive(), "not before the grace"
    m.run(200)
    assert not machine.alive()


def test_the_users_own_begin_time_and_comment_are_kept(make: Make) -> None:
    m = make()
    far = m.world.clock() + 600
    job = m.world.slurm.submit(20, eligible_time=int(far), reason="BeginTime", comment="mine")
    m.world.slurm.job[job].begin = far
    m.run(300)
    assert states(m, job) == {"PENDING"}
    assert not m.world.cloud.machine
    assert m.world.slurm.job[job].record.comment == "mine"


def test_a_job_requeued_while_the_manager_was_dead_gets_a_node_and_starts(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(300)
    until(m, running(m, job))
    m.close()
    m.world.slurm.requeue(str(job))
    m.world.tick(20)
    m.start()
    assert until(m, running(m, job), 60) < 40


def test_a_preempted_job_gets_a_replacement_and_one_that_slurm_forgot_is_requeued(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(900)
    until(m, running(m, job))
    record = m.world.slurm.job[job].record
    from dataclasses import replace

    now = int(m.world.clock())
    m.world.slurm.job[job].record = replace(record, preempt_time=now - 5, start_time=now - 2, end_time=now + 900)
    m.run(15)
    assert len(m.world.cloud.living()) == 2
    assert m.world.slurm.job[job].record.restart_count == 0
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 30)
    until(m, running(m, job), 10)


def test_a_multi_node_job_comes_back_as_a_whole(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(300, nodes=3)
    until(m, running(m, job))
    lost = m.world.slurm.job[job].record.nodes[1]
    m.world.cloud.vanish(m.world.cloud.living(lost)[0])
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 3)
    until(m, running(m, job), 40)
    assert len(m.world.cloud.machine) == 4


# --- anything, anywhere -----------------------------------------------------------------------------------------------


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


def test_a_settled_world_is_left_alone(make: Make) -> None:
    m = make()
    job = m.world.slurm.submit(1000)
    until(m, running(m, job))
    m.run(10)
    before = len(m.world.slurm.log), m.world.cloud.calls
    m.run(100)
    assert (len(m.world.slurm.log), m.world.cloud.calls) == before
    assert all(isinstance(a, RememberJob) for a in m.actions)
    assert [x.state(m.world.clock()) for x in m.world.cloud.machine.values()] == [InstanceState.RUNNING]


def test_a_job_that_a_restarted_slurmctld_recalls_on_a_node_that_is_off_comes_back(make: Make) -> None:
    """It was killed before it had saved the requeue, and the node that it recalls is off by then."""
    m = make()
    slurm = m.world.slurm
    job = slurm.submit(60)
    until(m, running(m, job))
    (name,) = slurm.job[job].record.nodes
    m.world.cloud.vanish(m.world.cloud.living(name)[0])
    m.run(2)
    slurm.job[job].record = replace(
        slurm.job[job].record, states=frozenset({"RUNNING"}), nodes=(name,), restart_count=0
    )
    slurm.node[name].flags, slurm.node[name].down = {"POWERED_DOWN"}, False
    until(m, lambda: states(m, job) == {"COMPLETED"}, 300)
    m.run(400)
    check_settled(m)
