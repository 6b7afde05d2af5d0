"""Sizes and prices of Azure's machines, by Azure's own client and by the Retail Prices API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.cloud.azure import catalog, prices, shape
from slurm_plugin.cloud.azure.cloud import AzureCloud
from slurm_plugin.cloud.azure.errors import ApiError
from slurm_plugin.cloud.provider import InstanceState, Market, Offering
from slurm_plugin.cloud.sizes import DescribesTypes, MachineSize
from slurm_plugin.cloud.tags import CLUSTER
from slurm_plugin.config import AzureProvider
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.manager.pricing import TellsPrices
from tests.fixtures.azure import ROOT
from tests.fixtures.azure_catalog import REGION, AzureCatalog, azure_catalog, meter, sku

T4 = "Standard_NC8as_T4_v3"
SPOT = Offering("az", REGION, "1", T4, Market.SPOT)
CUT = Offering("az", REGION, "any", "Standard_M8-2ms", Market.ON_DEMAND)


@pytest.fixture
def cloud() -> Iterator[AzureCatalog]:
    with azure_catalog() as served:
        served.skus = [
            sku(T4, kind="disks"),
            sku(T4, vCPUs="8", MemoryGB="56", GPUs="1"),
            sku("Standard_M8-2ms", vCPUs="8", vCPUsAvailable="2", MemoryGB="218.75"),
            sku("Standard_Odd", vCPUs="8"),
        ]
        served.meters = [
            meter(T4, 0.752),
            meter(T4, 0.7, effectiveStartDate="2020-01-01T00:00:00Z"),
            meter(T4, 1.12, product="Series Windows"),
            meter(T4, 0.1, " Spot"),
            meter(T4, 0.2, " Spot", product="Series Windows"),
            meter(T4, 0.05, " Low Priority"),
            meter(T4, 0.6, " Spot", armRegionName="eastus"),
        ]
        yield served


def provider(cloud: AzureCatalog, folder: Path) -> AzureCloud:
    config = AzureProvider(
        type="azure",
        subscription="s",
        resource_group="nodes",
        region=REGION,
        endpoint_url=cloud.url,
        image="a:b:c:d",
        subnet="/subscriptions/s/subnets/n",
        ssh_public_key="ssh-ed25519 A",
    )
    return AzureCloud("az", config, cluster="test", state_dir=folder, slurm_conf=Path("/etc/slurm/slurm.conf"))


def test_sizes_count_what_a_constrained_size_has(cloud: AzureCatalog, tmp_path: Path) -> None:
    azure = provider(cloud, tmp_path)
    assert isinstance(azure, DescribesTypes)
    odd, unknown = (replace(SPOT, instance_type=name) for name in ("Standard_Odd", "Standard_Moon"))
    assert azure.machine_sizes([SPOT, CUT, odd, unknown]) == {
        SPOT.id: MachineSize(8, 57344, 1),
        CUT.id: MachineSize(2, 224000, 0),
    }
    cloud.unreachable = True
    assert azure.machine_sizes([SPOT]) == {SPOT.id: MachineSize(8, 57344, 1)}, "what a size has is kept"
    with pytest.raises(CloudUnavailable):
        azure.machine_sizes([unknown])


def test_the_linux_price_of_each_market(cloud: AzureCatalog, tmp_path: Path) -> None:
    azure = provider(cloud, tmp_path)
    assert isinstance(azure, TellsPrices)
    dear = replace(SPOT, market=Market.ON_DEMAND)
    assert azure.prices([SPOT, dear, CUT]) == {SPOT.id: 0.1, dear.id: 0.752}
    asked = cloud.calls["prices"]
    assert asked == 3, "six meters of the region, two a page"
    azure.prices([dear])
    assert cloud.calls["prices"] == asked, "the list is kept"


def test_a_list_that_breaks_off_tells_nothing(cloud: AzureCatalog, tmp_path: Path) -> None:
    azure = provider(cloud, tmp_path)
    cloud.break_page = True
    with pytest.raises(CloudUnavailable, match="HTTP 429"):
        azure.prices([SPOT])
    cloud.break_page = False
    assert azure.prices([SPOT]) == {SPOT.id: 0.1}


def test_what_can_not_be_read_is_left_out_or_no_answer(cloud: AzureCatalog, tmp_path: Path) -> None:
    names = [{"name": "vCPUs", "value": "8"}, {"name": "MemoryGB", "value": "inf"}]
    for capabilities in ([5], 5, "x", names, [*names, {"name": "GPUs", "value": "1e400"}]):
        assert catalog.read({"name": T4, "capabilities": capabilities}) is None
    good = cloud.meters[0]
    for price in (float("nan"), float("inf"), -1, True, "0.1", 10**400):
        assert prices.read([{**good, "retailPrice": price}]) == {}
    for shown in ({"tags": 5}, {"tags": {CLUSTER: "test"}, "properties": [5]}, {"tags": {CLUSTER: "test"}, "properties": {"instanceView": {"statuses": [5]}}}):  # fmt: skip
        with pytest.raises(ApiError, match="can't be read"):
            shape.read(shown, "test")


@pytest.mark.parametrize("odd", ["x", None, [5]])
def test_what_another_machine_of_the_subscription_shows_is_no_matter(
    cloud: AzureCatalog, tmp_path: Path, odd: object
) -> None:
    """The listing of states has everybody's."""
    mine, other = (f"{ROOT}/resourceGroups/{name}" for name in ("nodes/m", "other/m"))
    stopped = {"instanceView": {"statuses": [{"code": "PowerState/stopped"}]}}
    cloud.records |= {
        f"{ROOT}/resourceGroups/nodes/providers/Microsoft.Compute/virtualMachines": {
            "value": [{"id": mine, "name": "spot-1", "tags": {CLUSTER: "test"}, "properties": {}}]
        },
        f"{ROOT}/providers/Microsoft.Compute/virtualMachines": {
            "value": [{"id": other, "properties": odd}, {"id": mine, "properties": stopped}]
        },
    }
    (machine,) = provider(cloud, tmp_path).instances()
    assert machine.state is InstanceState.GONE
    cloud.records[f"{ROOT}/resourceGroups/nodes/providers/Microsoft.Compute/virtualMachines"]["value"][0][
        "properties"
    ] = "x"
    with pytest.raises(CloudUnavailable, match="can't be read"):
        provider(cloud, tmp_path).instances()
