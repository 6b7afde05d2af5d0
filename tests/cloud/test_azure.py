"""What is Azure's own: the shape of a machine, failures that show late, names that serve again, its many meanings of one code."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from azure.mgmt.compute import models
from pydantic import ValidationError

from slurm_plugin.cloud.azure.errors import ApiError
from slurm_plugin.cloud.provider import InstanceState, Launched, Market, RefusalKind, Refused
from slurm_plugin.config_providers import OfferingConfig
from slurm_plugin.errors import CloudUnavailable
from tests.cloud.stage import listed, patiently, requests
from tests.cloud.test_contract_azure import AzureStage
from tests.fixtures.azure import Azure, azure, unknown_fields


@pytest.fixture
def cloud() -> Iterator[Azure]:
    with azure() as served:
        yield served


def test_spot_machine_as_it_is_asked_for(cloud: Azure, tmp_path: Path) -> None:
    stage = AzureStage(
        cloud, tmp_path, identity="/i", disk_gb=200, proximity_placement_group="/ppg", tags={"team": "a"}
    )
    [request] = requests(stage, ["spot-1"])
    stage.provider.launch([request])
    (put,) = cloud.puts
    body, properties = put["body"], put["body"]["properties"]
    assert (put["name"], body["location"], body["zones"]) == ("spot-1", "westeurope", ["1"])
    assert body["tags"] == {
        "team": "a",
        "spotburst-cluster": "test",
        "spotburst-node": "spot-1",
        "spotburst-nodeset": "spot",
        "spotburst-launch": request.launch_id,
        "spotburst-offering": request.offering.id,
    }
    assert (properties["priority"], properties["evictionPolicy"]) == ("Spot", "Delete")
    assert properties["billingProfile"] == {"maxPrice": -1}
    assert properties["hardwareProfile"] == {"vmSize": "Standard_NC8"}
    assert properties["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    (interface,) = properties["networkProfile"]["networkInterfaceConfigurations"]
    assert interface["properties"]["deleteOption"] == "Delete"
    assert properties["osProfile"]["computerName"] == "spot-1"
    assert body["identity"] == {"type": "UserAssigned", "userAssignedIdentities": {"/i": {}}}
    assert "proximityPlacementGroup" not in properties, "placement is for jobs of several nodes"
    data = yaml.safe_load(base64.b64decode(properties["osProfile"]["customData"]))
    node = json.loads(base64.b64decode(data["write_files"][0]["content"]))
    assert (node["node"], node["provider"], node["cluster"]) == ("spot-1", "azure", "test")


def test_other_ways_to_buy(cloud: Azure, tmp_path: Path) -> None:
    stage = AzureStage(cloud, tmp_path, image="microsoft-dsvm:ubuntu-hpc:2204", proximity_placement_group="/ppg")
    stage.provider.launch(requests(stage, ["n-1", "n-2"], market=Market.ON_DEMAND, gang="g"))
    for put in cloud.puts:
        properties = put["body"]["properties"]
        assert "priority" not in properties
        assert properties["proximityPlacementGroup"] == {"id": "/ppg"}
        image = {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204", "version": "latest"}
        assert properties["storageProfile"]["imageReference"] == image


def test_the_check_of_bodies_finds_fields_that_the_api_lacks() -> None:
    body = {"location": "x", "properties": {"priority": "Spot", "osProfile": {"hostname": "x"}}, "colour": "red"}
    assert unknown_fields(models.VirtualMachine(body), body, "") == ["colour", "properties.osProfile.hostname"]


def test_machine_that_failed_is_deleted_and_its_name_serves_again(cloud: Azure, tmp_path: Path) -> None:
    stage = AzureStage(cloud, tmp_path)
    stage.refuse(RefusalKind.NO_CAPACITY)
    [told] = patiently(stage, requests(stage, ["spot-1"]))
    assert isinstance(told, Refused)
    assert (told.kind, told.code) == (RefusalKind.NO_CAPACITY, "ZonalAllocationFailed")
    [answer] = patiently(stage, requests(stage, ["spot-1"]), tries=100)
    assert isinstance(answer, Launched)
    assert list(stage.living()) == [answer.instance_id]


@pytest.mark.parametrize(
    ("power", "state"),
    [
        ("starting", InstanceState.PENDING),
        ("running", InstanceState.RUNNING),
        ("stopping", InstanceState.STOPPING),
        ("stopped", InstanceState.GONE),
        ("deallocating", InstanceState.STOPPING),
        ("deallocated", InstanceState.GONE),
    ],
)
def test_states(cloud: Azure, tmp_path: Path, power: str, state: InstanceState) -> None:
    stage = AzureStage(cloud, tmp_path)
    [request] = requests(stage, ["spot-1"])
    patiently(stage, [request])
    cloud.machines["spot-1"].power = power
    seen = listed(stage)[request.launch_id]
    assert (seen.state, seen.billed) == (state, True)


@pytest.mark.parametrize(
    ("code", "text", "status", "kind", "permanent"),
    [
        (
            "OperationNotAllowed",
            "exceeding approved Cores quota. Current Limit: 0, Additional Required: 8",
            409,
            "quota",
            True,
        ),
        (
            "OperationNotAllowed",
            "exceeding approved Cores quota. Current Limit: 10, Additional Required: 8",
            409,
            "quota",
            False,
        ),
        ("QuotaExceeded", "no more", 409, "quota", False),
        ("OperationNotAllowed", "The maximum price is below the current one", 409, "price", False),
        ("OperationNotAllowed", "This machine is locked", 409, "mistake", True),
        ("SkuNotAvailable", "", 409, "no-capacity", False),
        ("OverconstrainedAllocationRequest", "", None, "no-capacity", False),
        ("TooManyRequests", "", 429, "try-later", False),
        ("SomethingNew", "", 503, "try-later", False),
        ("SomethingNew", "", 400, "mistake", True),
    ],
)
def test_codes(code: str, text: str, status: int | None, kind: str, permanent: bool) -> None:
    refused = ApiError(code, text, status).refuse("x")
    assert (refused.kind, refused.permanent) == (RefusalKind(kind), permanent)


def test_pause_that_azure_asks_for_is_kept(cloud: Azure, tmp_path: Path) -> None:
    stage = AzureStage(cloud, tmp_path)
    cloud.throttles, cloud.retry_after = 1, "200"
    for _ in range(2):
        with pytest.raises(CloudUnavailable):
            stage.provider.instances()
    assert cloud.throttles == 0
    assert cloud.calls["GET list"] == 0, "the second was not even sent"
    [answer] = stage.provider.launch(requests(stage, ["spot-1"]))
    assert isinstance(answer, Refused)
    assert answer.kind is RefusalKind.TRY_LATER


def test_offerings_that_can_not_be_bought_are_said_at_once(cloud: Azure, tmp_path: Path) -> None:
    config = AzureStage(cloud, tmp_path).config

    def unfit(zone: str, market: str = "spot") -> str:
        return config.unfit(OfferingConfig(provider="az", instance_type="x", zone=zone, market=Market(market)))

    assert unfit("1") == unfit("any") == ""
    assert "1, 2, 3" in unfit("westeurope-1")
    assert "reservation" in unfit("1", "reservation")
    with pytest.raises(ValidationError):
        AzureStage(cloud, tmp_path, tags={"spotburst-x": "a"})
