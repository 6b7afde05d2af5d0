"""``spotburst offerings``, and what ``describe`` and ``attempts`` tell of offerings and of money."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_plugin.cloud.provider import RefusalKind
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import WAITING, Charge
from tests.unit.cli.conftest import Said, Site

Spotburst = Callable[..., Said]
A, B, DEAR = "local/local/a/small/spot", "local/local/b/small/spot", "local/local/a/small/on-demand"
OFFERINGS = """\
    offerings:
      - {provider: local, instance_type: small, zone: a}
      - {provider: local, instance_type: small, zone: b}
      - {provider: local, instance_type: small, zone: a, market: on-demand}
    placement: {on_demand_after: {failures: 2}}
"""
PRICES = """\
date: 2026-01-02
currency: EUR
machines: [{provider: local, instance_type: small, on_demand: 36, spot: 9}]
"""


@pytest.fixture
def ledger(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setattr("slurm_plugin.placement.cooling.FIRST_COOLING", 1200.0)  # longer than a test takes
    burst = site.folder / "burst.yaml"
    text = burst.read_text().replace("offerings: [{provider: local, instance_type: small}]}", "\n")
    assert text != burst.read_text()
    lines = []
    for line in text.splitlines():
        if line.startswith("  - {name: spot, nodes"):
            lines += [
                "  - name: spot",
                '    nodes: "spot-[1-3]"',
                "    cpus: 1",
                "    memory_mb: 500",
                OFFERINGS.rstrip(),
            ]
        else:
            lines.append(line)
    (site.folder / "prices.yaml").write_text(PRICES)
    burst.write_text("\n".join([*lines, f"prices: {site.folder}/prices.yaml", ""]))
    (site.folder / "state").mkdir()
    opened = Ledger.open(site.folder / "state" / "ledger.db")
    yield opened
    opened.close()


def refuse(ledger: Ledger, offering: str, kind: RefusalKind, *, permanent: bool = False) -> None:
    intent = ledger.open_intent("spot-1", "spot", "local", offering)
    ledger.refused(intent.launch_id, kind, "Code", f"words of {kind.value}", permanent=permanent)


def test_all_with_order_state_price_and_why(spotburst: Spotburst, ledger: Ledger) -> None:
    refuse(ledger, A, RefusalKind.NO_CAPACITY)
    said = spotburst("offerings", "--json")
    assert said.code == 0
    b, a, dear = json.loads(said.out)
    assert (b["offering"], b["place"], b["state"]) == (B, 1, "ready")
    assert (a["offering"], a["place"], a["state"], a["why"]) == (A, None, "cooling", "Code: words of no-capacity")
    assert a["until"] > 0
    assert a["refusals"] == 1
    assert a["interruptions_a_day"] > b["interruptions_a_day"]
    assert (dear["offering"], dear["state"]) == (DEAR, "excluded")
    assert "on-demand only after 2 starts" in dear["why"]
    assert (b["price"], dear["price"], b["currency"], b["price_from"]) == (9.0, 36.0, "EUR", "table")
    table = spotburst("offerings")
    assert "9 EUR/h" in table.out
    assert "2026-01-02" in table.err


def test_what_is_blocked_says_how_it_is_cleared(spotburst: Spotburst, ledger: Ledger) -> None:
    refuse(ledger, B, RefusalKind.MISTAKE, permanent=True)
    shown = spotburst("offerings")
    assert "blocked" in shown.out
    assert "spotburst offerings clear" in shown.err
    assert spotburst("offerings", "clear", B).out == f"{B}: may be asked again\n"
    assert "blocked" not in spotburst("offerings").out
    assert spotburst("offerings", "clear", "all").out == "nothing stood against it\n"
    wrong = spotburst("offerings", "clear", "moon")
    assert wrong.code == 2
    assert f"no such offering in burst.yaml; there are: {DEAR}, {A}, {B}, or all" in wrong.err


def test_a_damaged_name_in_the_ledger_keeps_no_offering_from_being_shown(spotburst: Spotburst, ledger: Ledger) -> None:
    ledger.count("jo\ufffd:7", WAITING)
    said = spotburst("offerings", "--json")
    assert said.code == 0, said.err
    assert {row["offering"] for row in json.loads(said.out)} == {A, B, DEAR}


def test_clearing_makes_no_ledger(spotburst: Spotburst, site: Site) -> None:
    said = spotburst("offerings", "clear", "all")
    assert said.code == 2
    assert "there is no ledger; the manager makes it" in said.err
    assert not (site.folder / "state").exists()


def test_without_a_ledger_offerings_are_listed_as_they_are_configured(spotburst: Spotburst, site: Site) -> None:
    said = spotburst("offerings")
    assert said.code == 0
    assert "local/local/default/small/spot" in said.out
    assert "nothing is known of what happened to offerings" in said.err


def test_cost_of_each_attempt_and_of_the_run(spotburst: Spotburst, site: Site, ledger: Ledger) -> None:
    site.reclaimed_twice()
    attempts = json.loads(spotburst("attempts", "123", "--json").out)
    for one in attempts:
        hours = one["cost"]["hours"]
        assert hours > 0
        assert one["cost"]["paid"] == pytest.approx(9 * hours)
        assert one["cost"]["on_demand"] == pytest.approx(36 * hours)
    whole = json.loads(spotburst("describe", "123", "--json").out)["cost"]
    assert whole["paid"] == pytest.approx(sum(one["cost"]["paid"] for one in attempts))
    assert "EUR a machine so far; on-demand: " in spotburst("describe", "123").out


def test_cost_of_a_gang_is_of_all_its_machines_after_slurm_has_forgotten_it(
    spotburst: Spotburst, site: Site, ledger: Ledger
) -> None:
    for restart, machines in enumerate((4, 2)):
        claim = site.claim("123", restart, machines=machines)
        site.tick(3600.0)
        site.commit(claim, 10, b"a", resumed=None)
    found = json.loads(spotburst("cost", "123", "--json").out)
    assert [one["machines"] for one in found["attempts"]] == [4, 2]
    first = found["attempts"][0]
    assert (first["paid"], first["on_demand"]) == (
        pytest.approx(9 * first["hours"]),
        pytest.approx(36 * first["hours"]),
    )
    assert first["hours"] == pytest.approx(4.0, rel=0.01)
    assert found["total"]["on_demand"] == pytest.approx(sum(one["on_demand"] for one in found["attempts"]))


def test_unknown_prices_are_not_shown_as_nothing(spotburst: Spotburst, site: Site) -> None:
    site.reclaimed_twice()
    attempts = json.loads(spotburst("attempts", "123", "--json").out)
    assert {one["cost"]["paid"] for one in attempts} == {None}
    assert "Cost" not in spotburst("describe", "123").out


def test_describe_shows_the_offerings_of_a_waiting_job(
    spotburst: Spotburst, site: Site, ledger: Ledger, fake_squeue: Callable[..., None]
) -> None:
    refuse(ledger, A, RefusalKind.NO_CAPACITY)
    fake_squeue(job_id=123, job_state="PENDING", partition="spot", restart_cnt=2)
    answer = spotburst("describe", "123", "--json")
    assert answer.err == ""
    said = json.loads(answer.out)
    assert [row["offering"] for row in said["offerings"]] == [DEAR, B, A], "after 2 failures on-demand comes first"
    shown = spotburst("describe", "123").out
    assert f"1. {DEAR}, 36 EUR/h" in shown
    assert f"-  {A}, 9 EUR/h: cooling, again at 2" in shown
    assert "Code: words of no-capacity" in shown


def test_describe_looks_at_what_is_left_of_a_run_as_the_manager_does(
    spotburst: Spotburst, site: Site, ledger: Ledger, fake_squeue: Callable[..., None]
) -> None:
    burst = site.folder / "burst.yaml"
    burst.write_text(burst.read_text().replace("{on_demand_after: {failures: 2}}", "{final_on_demand: 10%}"))
    fake_squeue(job_id=123, job_state="PENDING", partition="spot", restart_cnt=1)

    def asked_first(completed: int, restart: int) -> str:
        claim = site.claim("123", restart)
        claim.interrupted("reclaim", {"progress": {"completed": completed, "total": 100}})
        return str(json.loads(spotburst("describe", "123", "--json").out)["offerings"][0]["offering"])

    assert asked_first(50, 0) == A
    assert asked_first(95, 1) == DEAR, "the last tenth of the run"


def test_describe_looks_at_how_long_a_job_has_found_no_capacity(
    spotburst: Spotburst, site: Site, ledger: Ledger, fake_squeue: Callable[..., None]
) -> None:
    burst = site.folder / "burst.yaml"
    burst.write_text(burst.read_text().replace("{failures: 2}", "{wait: 1h}"))
    fake_squeue(job_id=123, job_state="PENDING", partition="spot")

    def is_asked() -> list[str]:
        rows = json.loads(spotburst("describe", "123", "--json").out)["offerings"]
        return [row["offering"] for row in rows if row["place"] is not None]

    assert is_asked() == [A, B]
    with contextlib.closing(Ledger.open(site.folder / "state" / "ledger.db", lambda: time.time() - 7200)) as before:
        before.wait_begins(123)
    assert is_asked() == [A, B, DEAR]


@pytest.fixture
def fake_squeue(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def make(**job: object) -> None:
        folder = site.folder / "bin"
        folder.mkdir()
        (site.folder / "slurm.conf").touch()
        (site.folder / "jobs.json").write_text(json.dumps({"jobs": [{"user_name": "u", **job}], "errors": []}))
        (folder / "squeue").write_text(f"#!/bin/sh\ncat {site.folder}/jobs.json\n")
        (folder / "squeue").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return make


def test_describe_tells_what_was_charged_and_the_limit(
    spotburst: Spotburst, ledger: Ledger, fake_squeue: Callable[..., None]
) -> None:
    for restart, node, price in ((0, "spot-1", 9.0), (0, "spot-2", 9.0), (1, "spot-1", 36.0)):
        charge = Charge(123, restart, node, 1000.0)
        ledger.charge_begins(charge, A, price)
        ledger.charge_ends(charge, 1000.0 + 3600.0)
    fake_squeue(job_id=123, job_state="PENDING", partition="spot", comment="mine cost_limit=60")
    said = json.loads(spotburst("describe", "123", "--json").out)["charged"]
    assert (said["limit"], said["spent"]) == (60.0, 54.0)
    assert [(one["restart_count"], one["machines"], one["paid"]) for one in said["attempts"]] == [(0, 2, 18.0), (1, 1, 36.0)]  # fmt: skip
    assert "54.00 EUR, 2 machines at a time, of at most 60.00 EUR" in spotburst("describe", "123").out
