"""What attempts cost, summed over restarts of the job and of the manager."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import AttemptCost, Charge, Spent

HOUR = 3600.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_attempts_add_up_and_survive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger.open(tmp_path / "ledger.db", clock)
    first = [Charge(7, 0, node, 1000.0) for node in ("n1", "n2")]
    for charge in first * 2:
        ledger.charge_begins(charge, "sim/r/a/t/spot", 2.0)
    assert ledger.charges() == {(7, 0, c.node): c for c in first}
    clock.now += HOUR
    assert ledger.spent() == {7: Spent(pytest.approx(4.0), 4.0, False)}
    for charge in first:
        ledger.charge_ends(charge, clock.now)
        ledger.charge_ends(charge, clock.now + HOUR)
    ledger.close()
    ledger = Ledger.open(tmp_path / "ledger.db", clock)
    ledger.charge_begins(Charge(7, 1, "n1", clock.now), "sim/r/a/t/on-demand", 8.0)
    clock.now += HOUR / 2
    assert ledger.spent() == {7: Spent(pytest.approx(8.0), 8.0, False)}
    assert ledger.attempt_costs(7) == [AttemptCost(0, 2, pytest.approx(4.0)), AttemptCost(1, 1, pytest.approx(4.0))]
    ledger.charge_begins(Charge(7, 1, "n2", clock.now), "sim/r/b/t/spot", None)
    assert ledger.spent()[7].unknown
    assert ledger.attempt_costs(7)[1].paid is None
    ledger.close()


def test_a_jobs_number_that_comes_again_begins_at_nothing(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger.open(tmp_path / "ledger.db", clock)
    ledger.charge_begins(Charge(7, 0, "n1", 1000.0), "sim/r/a/t/spot", 2.0)
    clock.now += HOUR
    ledger.forget_job(7)
    assert ledger.charges() == {}
    assert ledger.spent() == {}
    ledger.charge_begins(Charge(7, 0, "n1", clock.now), "sim/r/a/t/spot", 2.0)
    assert ledger.spent()[7].paid == 0.0
    ledger.close()


def test_a_node_that_a_job_gets_back_within_one_attempt_is_charged_again(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger.open(tmp_path / "ledger.db", clock)
    charge = Charge(7, 0, "n1", 1000.0)
    ledger.charge_begins(charge, "sim/r/a/t/spot", 1.0)
    clock.now += HOUR
    ledger.charge_ends(charge, clock.now)
    ledger.charge_begins(Charge(7, 0, "n1", clock.now), "sim/r/a/t/spot", 1.0)
    clock.now += HOUR
    assert ledger.spent()[7].paid == pytest.approx(2.0)
    ledger.close()
