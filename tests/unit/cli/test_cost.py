"""``spotburst cost``: attempts and the whole run, beside on-demand."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import Charge
from slurm_plugin.slurm.records import Job
from tests.unit.cli.conftest import Said, Site

Spotburst = Callable[..., Said]
PRICES = (
    "date: 2026-01-02\ncurrency: EUR\nmachines: [{provider: local, instance_type: small, on_demand: 36, spot: 9}]\n"
)


def priced(site: Site) -> None:
    (site.folder / "prices.yaml").write_text(PRICES)
    burst = site.folder / "burst.yaml"
    burst.write_text(f"{burst.read_text()}prices: {site.folder}/prices.yaml\n")


def test_each_attempt_and_the_run_beside_on_demand(site: Site, spotburst: Spotburst) -> None:
    priced(site)
    site.reclaimed_twice()
    found = json.loads(spotburst("cost", "123", "--json").out)
    # 0.5 s before its claim until it was interrupted; until its last commit, since it vanished; until its end.
    assert [round(one["hours"] * 3600, 3) for one in found["attempts"]] == [37.0, 10.5, 11.5]
    assert [one["paid"] for one in found["attempts"]] == pytest.approx([0.0925, 0.02625, 0.02875])
    assert [one["machines"] for one in found["attempts"]] == [1, 1, 1]
    whole = found["total"]
    assert (whole["paid"], whole["on_demand"], whole["saved"]) == pytest.approx((0.1475, 0.59, 0.4425))
    assert (found["currency"], found["charged"]) == ("EUR", None)
    out = spotburst("cost", "123").out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["1", "2", "3", "all"]
    assert "75 % of what on-demand machines would have cost" in out


def test_all_machines_count_as_the_manager_knows_them(site: Site, spotburst: Spotburst) -> None:
    priced(site)
    site.reclaimed_twice()
    (site.folder / "state").mkdir()
    ledger = Ledger.open(site.folder / "state" / "ledger.db")
    for node in ("spot-1", "spot-2"):
        ledger.charge_begins(Charge(123, 0, node, site.now - 3600), "local/local/a/small/spot", 9.0)
        ledger.charge_ends(Charge(123, 0, node, site.now - 3600), site.now)
    ledger.close()
    found = json.loads(spotburst("cost", "123", "--json").out)
    assert [one["machines"] for one in found["attempts"]] == [2, 1, 1]
    assert found["attempts"][0]["paid"] == pytest.approx(0.185)
    assert found["charged"]["spent"] == pytest.approx(18.0)
    assert "18.00 EUR, 2 machines at a time" in spotburst("cost", "123").out


def test_a_price_that_is_not_known_is_said_and_no_sum_is_made_up(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    said = spotburst("cost", "123")
    assert said.code == 0
    assert "no price is known of local/local/a/small/spot" in said.err
    found = json.loads(spotburst("cost", "123", "--json").out)
    assert found["total"]["paid"] is None
    assert found["total"]["saved"] is None


@pytest.mark.parametrize("command", ["cost", "describe", "report"])
def test_an_attempt_that_slurm_gave_up_costs_no_more(
    command: str, site: Site, spotburst: Spotburst, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced(site)
    attempt = site.claim("123")
    site.tick(10)
    site.commit(attempt, 10, b"x", resumed=None)
    waits = Job(123, "123", frozenset({"PENDING"}), "BeginTime", "spot", "ann", 1000, restart_count=1)
    monkeypatch.setattr("slurm_plugin.cli.source.slurm_job", lambda *_: (waits, None))
    monkeypatch.setattr("slurm_plugin.cli.describe.slurm_job", lambda *_: (waits, None))
    monkeypatch.setattr("time.time", lambda: site.now + 1000)
    found = json.loads(spotburst(command, "123", "--json").out)
    # From 0.5 s before its claim until its last commit: nothing tells how long its machine lived after that.
    whole = found[{"cost": "total", "describe": "cost", "report": "money"}[command]]
    assert whole["paid"] == pytest.approx(9 * 10.5 / 3600)
