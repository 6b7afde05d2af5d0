"""Sizes and prices of Compute Engine's machine types, by Google's own client and by Cloud Billing's catalog."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud.gcp import prices
from slurm_plugin.cloud.gcp.cloud import GcpCloud
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.sizes import DescribesTypes, MachineSize
from slurm_plugin.config import GcpProvider
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.manager.pricing import TellsPrices
from tests.fixtures.gcp_catalog import REGION, GcpCatalog, gcp_catalog, machine_type, sku

A, B = f"{REGION}-a", f"{REGION}-b"
L4 = Offering("gcp", REGION, A, "g2-standard-8", Market.SPOT)
OLD = Offering("gcp", REGION, A, "n1-standard-4", Market.SPOT)
SKUS = [
    sku("Spot Preemptible G2 Instance Core running in Americas", 0.01, "Preemptible", "CPU"),
    sku("Spot Preemptible G2 Instance Ram running in Americas", 0.001, "Preemptible", "RAM", "GiBy.h"),
    sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", 0.2, "Preemptible", "GPU"),
    sku("G2 Instance Core running in Americas", 0.025, "OnDemand", "CPU"),
    sku("G2 Instance Ram running in Americas", 0.003, "OnDemand", "RAM", "GiBy.h"),
    sku("Nvidia L4 GPU running in Americas", 1.56, "OnDemand", "GPU"),
    sku("Nvidia L4 GPU attached to DWS Defined Duration VMs running in Americas", 0.4, "OnDemand", "GPU"),
    sku("Commitment v1: G2 Cpu in Americas for 1 Year", 0.001, "Commit1Yr", "CPU"),
    sku("Spot Preemptible G2 Instance Core running in Europe", 9.0, "Preemptible", "CPU", regions=("europe-west4",)),
    sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.007, "Preemptible", "N1Standard"),
]


@pytest.fixture
def cloud() -> Iterator[GcpCatalog]:
    with gcp_catalog() as served:
        served.types = {A: [machine_type("n1-standard-4", 4, 15360)], B: [machine_type("g2-standard-8", 8, 32768, "nvidia-l4", 1)]}  # fmt: skip
        served.types[A].append(served.types[B][0])
        served.skus = SKUS
        yield served


def provider(cloud: GcpCatalog, folder: Path, **settings: Any) -> GcpCloud:
    base = {"type": "gcp", "project": "p", "region": REGION, "endpoint_url": cloud.url, "image": "i", "subnetwork": "s"}
    config = GcpProvider(**{**base, **settings})
    return GcpCloud("gcp", config, cluster="test", state_dir=folder, slurm_conf=Path("/etc/slurm/slurm.conf"))


def test_sizes_by_zone_and_in_any_zone(cloud: GcpCatalog, tmp_path: Path) -> None:
    del cloud.types[A][1]
    gcp = provider(cloud, tmp_path)
    assert isinstance(gcp, DescribesTypes)
    elsewhere = replace(L4, zone=B)
    anywhere = replace(OLD, zone="any")
    unknown = replace(OLD, instance_type="n9-moon-1")
    assert gcp.machine_sizes([elsewhere, anywhere, unknown]) == {
        elsewhere.id: MachineSize(8, 32768, 1),
        anywhere.id: MachineSize(4, 15360, 0),
    }
    asked = cloud.calls["machineTypes"]
    gcp.machine_sizes([elsewhere, anywhere])
    assert cloud.calls["machineTypes"] == asked, "what a type is made of is kept"


def test_a_machine_costs_its_cores_memory_and_gpus(cloud: GcpCatalog, tmp_path: Path) -> None:
    gcp = provider(cloud, tmp_path)
    assert isinstance(gcp, TellsPrices)
    dear = replace(L4, market=Market.ON_DEMAND)
    prices = gcp.prices([L4, dear, OLD])
    assert prices == {
        L4.id: pytest.approx(8 * 0.01 + 32 * 0.001 + 0.2),
        dear.id: pytest.approx(8 * 0.025 + 32 * 0.003 + 1.56),
    }, "the catalog has no memory of N1, so its machines have no price"
    pages = cloud.calls["skus"]
    assert pages == len(SKUS) / cloud.page
    assert gcp.prices([L4]) == {L4.id: prices[L4.id]}
    assert cloud.calls["skus"] == pages, "the list is kept"


def test_a_list_that_breaks_off_tells_nothing(cloud: GcpCatalog, tmp_path: Path) -> None:
    gcp = provider(cloud, tmp_path)
    cloud.break_page = True
    with pytest.raises(CloudUnavailable, match=r"HTTP 500: .*Internal error"):
        gcp.prices([L4])
    cloud.break_page = False
    assert L4.id in gcp.prices([L4])
    cloud.unreachable = True
    with pytest.raises(CloudUnavailable):
        provider(cloud, tmp_path / "new").machine_sizes([L4])


@pytest.mark.parametrize(
    "change", [{"category": 5}, {"serviceRegions": 5}, {"pricingInfo": 5}, {"pricingInfo": [{"pricingExpression": 5}]}]
)
def test_what_can_not_be_read_has_no_price(change: dict[str, Any]) -> None:
    assert list(prices.read([SKUS[0]], REGION).values()) == [pytest.approx(0.01)]
    assert prices.read([{**SKUS[0], **change}], REGION) == {}


@pytest.mark.parametrize("units", ["9" * 400, "-1", "x", [1], float("inf")])
def test_what_is_no_price(units: Any) -> None:
    one = copy.deepcopy(SKUS[0])
    one["pricingInfo"][-1]["pricingExpression"]["tieredRates"][-1]["unitPrice"]["units"] = units
    assert prices.read([one], REGION) == {}
