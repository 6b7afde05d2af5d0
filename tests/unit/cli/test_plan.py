"""``spotburst plan``: figures by hand, and those that burst.yaml and the manager's ledger know."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode

if TYPE_CHECKING:
    from conftest import Said, Site

Spotburst = Callable[..., "Said"]
EXAMPLE = ["plan", "--hours", "10", "--gpus", "8", "--price", "2.60", "--reclaimed-at", "7.5"]


def test_the_published_example(spotburst: Spotburst) -> None:
    found = json.loads(spotburst(*EXAMPLE, "--json").out)
    lines = {one["interval"]: one for one in found["lines"]}
    assert (lines[None]["lost"], lines[None]["total"]) == (156.0, 364.0)
    assert (lines[3600.0]["lost"], lines[3600.0]["total"]) == (10.4, 218.4)
    assert (lines[1800.0]["most"], lines[900.0]["most"]) == (10.4, 5.2)
    # 7.5 h is a whole number of half and quarter hours: a save that is due at that very moment is not made.
    assert (lines[1800.0]["lost"], lines[900.0]["lost"]) == (10.4, 5.2)
    assert (lines[1800.0]["total"], lines[900.0]["total"]) == (218.4, 213.2)
    assert found["work"]["undisturbed"] == 208.0
    out = spotburst(*EXAMPLE).out
    for figure in ("364.00", "156.00", "218.40", "10.40", "5.20", "give --on-demand-price"):
        assert figure in out
    assert "auto comes to 10 min: a run begins with it; --save-time shows" in out


def test_what_is_measured_goes_into_the_interval(spotburst: Spotburst) -> None:
    options = [
        "--save-time",
        "30s",
        "--upload-time",
        "1m",
        "--restore-time",
        "3m",
        "--reclaims-a-day",
        "2",
        "--nodes",
        "4",
    ]
    found = json.loads(spotburst(*EXAMPLE, *options, "--interval", "20m", "--json").out)
    assert found["work"]["rate"] == pytest.approx(8 / 24)
    assert [one["interval"] for one in found["lines"]][:2] == [None, 1200.0]
    assert found["auto"]["seconds"] == pytest.approx(770, rel=0.02)
    assert found["with_notice"] == pytest.approx(3 / 60 * 20.8)


def test_from_burst_yaml(site: Site, spotburst: Spotburst) -> None:
    (site.folder / "prices.yaml").write_text(
        "date: 2026-01-01\ncurrency: EUR\nmachines: [{provider: local, instance_type: small, spot: 1.5, on_demand: 4}]\n"
    )
    burst = site.folder / "burst.yaml"
    text = burst.read_text()
    one = "{provider: local, instance_type: small}"
    three = f"{{provider: local, instance_type: small, zone: a}}, {{provider: local, instance_type: small, zone: b}}, {one[:-1]}, market: on-demand}}"
    burst.write_text(f"prices: {site.folder}/prices.yaml\n" + text.replace(one, three))
    found = json.loads(spotburst("plan", "--hours", "10", "--nodeset", "spot", "--nodes", "2", "--json").out)
    assert found["work"]["hourly"] == 3.0
    assert found["currency"] == "EUR"
    assert found["first_offering"] == "local/local/a/small/spot"
    assert found["next_offering"] == "local/local/b/small/spot", "the first's zone is asked last after a reclaim"
    assert found["fallback"]["usual"] == 80.0
    assert found["fallback"]["rule"] == "on_demand_after: {failures: 3}", (
        "two nodes are brought back three times at most"
    )
    assert "local/local/b/small/spot" in spotburst("plan", "--hours", "10", "--nodeset", "spot").out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--hours", "10"], "no price is known: give --price, or --nodeset"),
        (["--hours", "10", "--nodeset", "moon"], "no such nodeset in burst.yaml; there are: spot"),
        (["--hours", "10", "--nodeset", "spot"], "no price of local/local/default/small/spot is known: give --price"),
        (["--hours", "10", "--price", "1", "--reclaimed-at", "11"], "after the end, which is at 10 hours"),
        (["--hours", "10", "--price", "1", "--interval", "7h"], "write from 1m to 6h"),
        (["--hours", "10", "--price", "1", "--interval", "59s"], "write from 1m to 6h"),
        (["--hours", "10", "--price", "1", "--save-time", "soon"], "'soon' is not a duration"),
        (["--price", "1"], "--hours"),
    ],
)
def test_what_can_not_be_planned_says_why(site: Site, spotburst: Spotburst, arguments: list[str], text: str) -> None:
    said = spotburst("plan", *arguments)
    assert said.code == ExitCode.USAGE
    assert text in said.err
