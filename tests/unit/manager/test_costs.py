"""A run with a cost limit, over the simulated Slurm and cloud, from its first charge to its hold and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_plugin.errors import SlurmRefused
from slurm_plugin.prices import PriceTable
from tests.unit.manager.harness import Manager, policy
from tests.unit.manager.world import World

PRICES = PriceTable.model_validate(
    {"date": "2026-01-02", "machines": [{"provider": "sim", "instance_type": "t", "spot": 3.6}]}
)
"""A tenth of a cent a second."""


@pytest.fixture
def m(tmp_path: Path) -> Iterator[Manager]:
    world = World(("n1", "n2"), tmp_path)
    manager = Manager(world, policy(("n1", "n2"), least_attempt=100.0), tmp_path / "ledger.db", prices=PRICES)
    yield manager
    manager.close()


def until(m: Manager, true: Callable[[], bool], seconds: int) -> None:
    for _ in range(seconds):
        if true():
            return
        m.step()
    raise AssertionError(f"not within {seconds} s: {m.world.slurm.jobs()}")


def is_held(m: Manager, job: int) -> Callable[[], bool]:
    return lambda: m.world.slurm.job[job].record.priority == 0 and m.world.slurm.job[job].record.has("PENDING")


@pytest.mark.parametrize("deaf", [False, True])
def test_a_run_is_held_at_its_limit_over_restarts_and_goes_on_when_it_is_raised(m: Manager, deaf: bool) -> None:
    m.world.slurm.deaf = deaf
    job = m.world.slurm.submit(1500, comment="cost_limit=1")
    until(m, lambda: m.world.slurm.job[job].done >= 200, 400)
    m.world.cloud.vanish(next(iter(m.world.cloud.living())))
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 300)
    m.close()
    m.start()
    until(m, is_held(m, job), 2000)
    m.run(2)
    costs = m.ledger.attempt_costs(job)
    assert [one.restart_count for one in costs] == [0, 1]
    total = m.ledger.spent()[job].paid
    assert total == pytest.approx(sum(one.paid or 0.0 for one in costs))
    assert 0.7 < total <= 1.0 + (0.31 if deaf else 0.0), "a deaf one has its grace"
    assert "CostLimit" in m.world.slurm.job[job].record.comment
    m.run(300)
    assert is_held(m, job)()
    assert m.ledger.spent()[job].paid == pytest.approx(total), "nothing more is spent on it"
    record = m.world.slurm.job[job].record
    m.world.slurm.deaf = False
    m.world.slurm.set_comment(str(job), record.comment.replace("cost_limit=1", "cost_limit=5"))
    m.world.slurm.release(str(job))
    until(m, lambda: m.world.slurm.job[job].record.states == {"COMPLETED"}, 2500)


def test_letting_it_go_without_raising_the_limit_holds_it_again(m: Manager) -> None:
    job = m.world.slurm.submit(1500, comment="cost_limit=0.01")
    until(m, is_held(m, job), 30)
    assert m.world.cloud.calls == 0
    m.world.slurm.release(str(job))
    until(m, is_held(m, job), 30)
    assert m.world.cloud.calls == 0


def refuse(*_: object, **__: object) -> None:
    raise SlurmRefused("Job update not available right now")


def test_one_that_slurm_does_not_let_be_asked_or_told_ends_all_the_same(
    m: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(m.world.slurm, "signal", refuse)
    monkeypatch.setattr(m.world.slurm, "set_comment", refuse)
    alone = m.world.slurm.submit(1500, comment="cost_limit=0.5", requeue=False)
    job = m.world.slurm.submit(1500, comment="cost_limit=0.5")
    until(m, is_held(m, job), 1500)
    until(m, lambda: m.world.slurm.job[alone].record.has("CANCELLED"), 30)
    small = m.world.slurm.submit(1500, comment="cost_limit=0.01")
    until(m, is_held(m, small), 30)
    assert max(spent.paid for spent in m.ledger.spent().values()) < 0.5 + 0.35, "its grace, and no more"


def test_a_limit_that_is_raised_while_the_job_is_asked_leaves_no_hold_behind(m: Manager) -> None:
    m.world.slurm.deaf = True
    job = m.world.slurm.submit(1500, comment="cost_limit=0.5")
    until(m, lambda: m.world.slurm.job[job].record.running and m.world.slurm.job[job].record.priority == 0, 1000)
    m.world.slurm.set_comment(str(job), "cost_limit=50")
    until(m, lambda: m.world.slurm.job[job].record.priority > 0, 10)
    until(m, lambda: m.world.slurm.job[job].record.states == {"COMPLETED"}, 2000)
    assert m.world.slurm.job[job].record.restart_count == 0
