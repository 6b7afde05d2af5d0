"""Spot prices by boto3's own client, against a server of EC2's API."""

from __future__ import annotations

import dataclasses

from slurm_plugin.cloud.provider import Market
from slurm_plugin.manager.pricing import TellsPrices
from tests.fixtures.ec2_stage import Ec2Stage


def test_prices_of_zones_and_of_any_zone(ec2: Ec2Stage) -> None:
    assert isinstance(ec2.provider, TellsPrices)
    here, there = ec2.offering(), ec2.offering(zone="eu-west-1b")
    anywhere = dataclasses.replace(here, zone="any")
    unknown = ec2.offering(instance_type="no.such-type")
    prices = ec2.provider.prices([here, there, anywhere, unknown])
    assert set(prices) == {here.id, there.id, anywhere.id}
    assert all(price > 0 for price in prices.values())
    assert prices[anywhere.id] == min(prices[here.id], prices[there.id])
    assert here.market is Market.SPOT
