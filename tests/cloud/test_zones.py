"""A machine of an offering of any zone is made in the zone that is asked for, and its listing tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import Launched
from tests.cloud.stage import NamedStage, Stage, listed, patiently, requests
from tests.cloud.test_contract_gcp import GcpStage
from tests.fixtures.ec2_stage import Ec2Stage
from tests.fixtures.gce import REGION, gce


@pytest.fixture
def gcp(tmp_path: Path) -> Iterator[NamedStage]:
    with gce() as cloud:
        yield GcpStage(cloud, tmp_path)


def bought(stage: Stage, zones: list[str]) -> list[str]:
    """One batch, each of any zone and in the zone named; where each is."""
    nodes = [f"spot-{number}" for number in range(1, len(zones) + 1)]
    asked = [
        replace(request, offering=replace(request.offering, zone="any"), zone=zone)
        for request, zone in zip(requests(stage, nodes), zones, strict=True)
    ]
    answers = patiently(stage, asked)
    assert [type(a) for a in answers] == [Launched] * len(zones), answers
    seen = listed(stage)
    assert {seen[r.launch_id].offering_id for r in asked} == {asked[0].offering.id}, "still of the offering"
    return [seen[r.launch_id].zone for r in asked]


def test_ec2(ec2: Ec2Stage) -> None:
    assert bought(ec2, ["eu-west-1b", "eu-west-1a", "eu-west-1b"]) == ["eu-west-1b", "eu-west-1a", "eu-west-1b"]


def test_compute_engine(gcp: GcpStage) -> None:
    wanted = [f"{REGION}-{letter}" for letter in "cbc"]
    assert bought(gcp, wanted) == wanted
