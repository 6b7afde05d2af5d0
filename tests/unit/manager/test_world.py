"""The manager over a simulated Slurm and cloud: what becomes of jobs, nodes and machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from job_wrapper.comments import with_left
from slurm_plugin.actions import RememberJob
from slurm_plugin.cloud.provider import InstanceState
from tests.unit.manager.checks import Make, check_settled, running, states, until
from tests.unit.manager.fake_cloud import Machine
from tests.unit.manager.fake_slurm import REQUEUE_DELAY, RESUME_TIMEOUT
from tests.unit.manager.harness import Manager


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


def test_a_job_that_leaves_a_node_of_which_nobody_has_told_yet_never_starts_there_again(make: Make) -> None:
    """No agent drains it, and its cloud's listing tells nothing: only the job's own wrapper has heard."""
    m = make()
    slurm = m.world.slurm
    job = slurm.submit(400)
    until(m, running(m, job))
    (old,) = slurm.job[job].record.nodes
    m.run(5)
    slurm.set_comment(str(job), with_left("mine", [old], m.world.clock()))
    slurm.requeue(str(job))
    m.run(30)
    assert states(m, job) == {"PENDING"}, "it waits for the node's end"
    assert len(m.world.cloud.living()) == 2, "another is prepared meanwhile"
    m.world.cloud.vanish(m.world.cloud.living(old)[0])
    assert until(m, running(m, job), 10) <= 6
    assert slurm.job[job].record.nodes != (old,)
    assert slurm.job[job].record.comment.startswith("mine | spotburst: ")
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


def blamed(m: Manager, machine: Machine) -> bool:
    """Whether the offering of that machine is held to account for it."""
    state = m.ledger.offerings().get(machine.request.offering.id)
    return state is not None and (state.failures, state.refused_until) != (0, 0.0)


@pytest.mark.parametrize("cut_off", [True, False])
def test_a_node_that_a_killed_slurmctld_recalls_as_booting_is_replaced_and_its_offering_not_blamed(
    make: Make, cut_off: bool
) -> None:
    """slurmctld asks such a node nothing, and its slurmd has nothing to say: without us it stays so until ResumeTimeout."""
    m = make()
    job = m.world.slurm.submit(500)
    until(m, running(m, job), 60)
    m.run(30)
    (name,) = m.world.slurm.job[job].record.nodes
    (machine,) = m.world.cloud.living(name)
    machine.cut_off = cut_off
    node = m.world.slurm.node[name]
    node.flags |= {"POWERING_UP", "NOT_RESPONDING"}
    node.since = began = m.world.clock()
    if not cut_off:
        machine.boots_in = 10 * RESUME_TIMEOUT  # its slurmd registers no second time
    until(m, lambda: not machine.alive(), 200)
    assert m.world.clock() - began < RESUME_TIMEOUT / 2
    assert not blamed(m, machine), "its offering is not held to account"
    until(m, running(m, job), 300)
    assert m.world.cloud.living()[0].request.offering == machine.request.offering, "and is bought again at once"


@pytest.mark.parametrize("restarted", [True, False])
def test_a_node_that_registered_unseen_before_slurmctld_was_killed_is_replaced_and_its_offering_not_blamed(
    make: Make, restarted: bool
) -> None:
    """Or it has not registered, since it is refused, and slurmctld was not restarted: then it has ResumeTimeout."""
    m = make()
    job = m.world.slurm.submit(500)
    until(m, lambda: bool(m.world.cloud.living()), 60)
    (machine,) = m.world.cloud.living()
    machine.cut_off = True
    m.run(3)
    if restarted:
        m.world.slurm.began = m.world.clock()
    began = m.world.clock()
    until(m, lambda: not machine.alive(), 200)
    assert (m.world.clock() - began < RESUME_TIMEOUT * 2 / 3) is restarted
    assert blamed(m, machine) is not restarted
    until(m, running(m, job), 300)
    assert m.world.slurm.job[job].record.restart_count == 1
