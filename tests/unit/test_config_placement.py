"""``placement`` and ``prices`` of burst.yaml, and the price table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.cloud.provider import Market
from slurm_plugin.config import load_config
from slurm_plugin.errors import ConfigError
from slurm_plugin.placement import Interruptible, Order
from slurm_plugin.prices import Cost, cost, load_prices, offering_of, price_list, priced, total
from slurm_plugin.reconcile import Policy
from tests.unit.test_config import changed, faults, written


def test_a_nodesets_own_keys_come_before_those_for_all(tmp_path: Path) -> None:
    def change(d: dict[str, Any]) -> None:
        d["placement"] = {"policy": "cheapest", "queue_timeout": "2h", "interruptible": "allowed"}
        d["nodesets"][0]["placement"] = {
            "policy": "most_available",
            "final_on_demand": "10%",
            "on_demand_after": {"failures": 3, "wait": "10m"},
        }

    config = load_config(written(tmp_path, changed(change)))
    rules = config.rules_of(config.nodesets[0])
    assert rules.policy is Order.MOST_AVAILABLE
    assert rules.queue_timeout == 7200.0
    assert rules.interruptible is Interruptible.ALLOWED
    assert rules.final_on_demand == pytest.approx(0.1)
    assert (rules.on_demand_after_failures, rules.on_demand_after_wait) == (3, 600.0)


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ({"policy": "best"}, "placement.policy: Input should be 'order', 'cheapest', 'most_available' or 'deadline'"),
        ({"interruptible": "maybe"}, "placement.interruptible: Input should be 'never', 'allowed' or 'required'"),
        ({"region": ["a"]}, "placement.region: unknown key; allowed here: across_zones, cost_limit, final_on_demand"),
        ({"max_price": 0}, "placement.max_price: "),
        ({"final_on_demand": "110%"}, "placement.final_on_demand: "),
        ({"final_on_demand": "a%"}, "'a%' is not a share: write a percentage such as 10%"),
        ({"on_demand_after": {}}, "placement.on_demand_after: write failures, wait, or both"),
        (
            {"regions": ["moon"]},
            "excludes every one of them: ec2/eu-west-1/eu-west-1a/g4dn.xlarge/spot: region eu-west-1",
        ),
        ({"gpu_types": ["h100"]}, "GPU type t4 is not among placement.gpu_types (h100)"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_what_is_wrong_is_told(tmp_path: Path, placement: dict[str, Any], words: str, own: bool) -> None:
    data = changed(lambda d: (d["nodesets"][0] if own else d).update(placement=placement))
    assert words in faults(tmp_path, data)


def test_gpu_types_of_offerings(tmp_path: Path) -> None:
    def change(d: dict[str, Any]) -> None:
        d["nodesets"][0]["offerings"][0]["gpu"] = "h100"
        d["nodesets"][0]["placement"] = {"gpu_types": ["h100"]}

    config = load_config(written(tmp_path, changed(change)))
    assert sorted(config.gpus_of(config.nodesets[0]).values()) == ["h100", "t4"]


@pytest.mark.parametrize(("interval", "least"), [("auto", 600.0), ("2m", 120.0)])
def test_an_attempt_counts_as_an_interval_also_where_that_is_chosen_by_itself(
    tmp_path: Path, interval: str, least: float
) -> None:
    def change(d: dict[str, Any]) -> None:
        d["checkpoints"]["interval"] = interval

    assert Policy.of(load_config(written(tmp_path, changed(change)))).least_attempt == least


TABLE = {
    "date": "2026-01-01",
    "currency": "EUR",
    "machines": [
        {"provider": "p", "instance_type": "t", "on_demand": 4.0, "spot": 1.5},
        {"provider": "p", "instance_type": "t", "region": "far", "on_demand": 5.0},
        {"provider": "p", "instance_type": "u", "on_demand": 9.0},
    ],
}


def table(tmp_path: Path, data: Any = TABLE) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_the_line_that_says_more_counts_and_live_prices_come_first(tmp_path: Path) -> None:
    prices = load_prices(table(tmp_path, {**TABLE, "currency": "USD"}))
    near, far, other = (offering_of(f"p/{r}/a/{t}/spot") for r, t in (("near", "t"), ("far", "t"), ("near", "u")))
    assert near
    assert far
    assert other
    assert prices.price(far, Market.ON_DEMAND) == 5.0
    assert prices.price(near, Market.ON_DEMAND) == 4.0
    assert price_list([near, far, other], prices, {near.id: 1.0}) == {near.id: 1.0, far.id: 1.5, other.id: 9.0}
    bound = priced(other, prices, {})
    assert bound is not None
    assert bound.source == "on-demand"
    assert price_list([near], None, {}) == {}
    yen = load_prices(table(tmp_path, {**TABLE, "currency": "JPY"}))
    assert price_list([near, far], yen, {near.id: 1.0, far.id: 1.0}) == price_list([near, far], yen, {}), (
        "clouds tell dollars"
    )


def test_what_is_not_known_is_never_taken_for_nothing(tmp_path: Path) -> None:
    prices = load_prices(table(tmp_path))
    assert cost(2.0, "p/near/a/t/spot", prices, {}) == Cost(2.0, 3.0, 8.0)
    assert cost(2.0, "p/near/a/u/spot", prices, {}) == Cost(2.0, None, 18.0), "an upper bound is no cost"
    assert cost(2.0, "nonsense", prices, {}) == Cost(2.0, None, None)
    assert total([Cost(1.0, 2.0, 3.0), Cost(1.0, None, 3.0)]) == Cost(2.0, None, 6.0)
    assert total([]) == Cost(0, None, None)


def test_the_example_that_ships_can_be_read() -> None:
    example = load_prices(Path(__file__).parents[2] / "templates" / "prices.yaml")
    assert {line.provider for line in example.machines} == {"example"}, "made-up prices name no cloud"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"date": "yesterday"}, "date: "),
        ({"currency": "dollars"}, "currency: "),
        ({"machines": [{"provider": "p"}]}, "machines.0.instance_type: missing"),
        ({"machines": [{"provider": "p", "instance_type": "t", "spot": -1}]}, "machines.0.spot: "),
        ({"price": {}}, "price: unknown key; allowed here: currency, date, machines"),
    ],
)
def test_a_wrong_table_is_told_with_its_place(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = table(tmp_path, {**TABLE, **change})
    with pytest.raises(ConfigError) as wrong:
        load_prices(path)
    assert f"{path}: {words}" in str(wrong.value)
