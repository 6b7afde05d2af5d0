"""Images and quotas of an Azure subscription, by Azure's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.mgmt.compute import models

from slurm_plugin.checks.finding import State
from tests.cloud.checking import assert_not_permitted, assert_well, found, of, states
from tests.fixtures.azure import ROOT
from tests.fixtures.azure_catalog import REGION, AzureCatalog, azure_catalog, sku

T4 = "Standard_NC8as_T4_v3"
SPOT, ON_DEMAND = {"instance_type": T4}, {"instance_type": T4, "market": "on-demand"}
MANAGED = f"{ROOT}/resourceGroups/g/providers/Microsoft.Compute/images/node"
OTHERS = "/subscriptions/other/resourceGroups/g/providers/Microsoft.Compute/galleries/all/images/node"
MARKET = f"{ROOT}/providers/Microsoft.Compute/locations/{REGION}/publishers/pub/artifacttypes/vmimage/offers/off/skus/sk/versions"


@pytest.fixture
def cloud() -> Iterator[AzureCatalog]:
    with azure_catalog() as served:
        told = {"vCPUs": "8", "MemoryGB": "56", "GPUs": "1", "CpuArchitectureType": "x64"}
        served.skus = [sku(T4, family="standardNCASv3_T4Family", **told)]
        served.use(cores=(100, 8), lowPriorityCores=(64, 0), **{"Standard NCASv3_T4 Family": (32, 8)})
        managed(served)
        yield served


def managed(cloud: AzureCatalog, location: str = "West Europe", state: str = "Succeeded") -> None:
    record = {"id": MANAGED, "name": "node", "location": location, "properties": {"provisioningState": state}}
    cloud.put(MANAGED, models.Image, record)


def gallery(cloud: AzureCatalog, versions: dict[str, dict[str, Any]], **about: Any) -> None:
    """``versions``: what is set of each one's publishing profile."""
    properties = {"osType": "Linux", "osState": "Generalized", "architecture": "x64", **about}
    cloud.put(OTHERS, models.GalleryImage, {"id": OTHERS, "name": "node", "location": REGION, "properties": properties})
    here = {"targetRegions": [{"name": "West Europe"}]}
    listed = [
        {
            "name": version,
            "location": REGION,
            "properties": {"provisioningState": "Succeeded", "publishingProfile": {**here, **profile}},
        }
        for version, profile in versions.items()
    ]
    cloud.put(f"{OTHERS}/versions", models.GalleryImageVersion, listed)


def market(cloud: AzureCatalog, **properties: Any) -> None:
    listed = [{"name": version, "location": REGION} for version in ("1.2.9", "1.2.10")]
    cloud.put(MARKET, models.VirtualMachineImageResource, listed, paged=False)
    record = {"name": "1.2.10", "location": REGION, "properties": {"architecture": "x64", **properties}}
    cloud.put(f"{MARKET}/1.2.10", models.VirtualMachineImage, record)


def provider(cloud: AzureCatalog, image: str = MANAGED) -> dict[str, Any]:
    return {
        "type": "azure",
        "subscription": "s",
        "resource_group": "nodes",
        "region": REGION,
        "endpoint_url": cloud.url,
        "image": image,
        "subnet": "/subscriptions/s/subnets/n",
        "ssh_public_key": "ssh-ed25519 A",
    }


def fault(cloud: AzureCatalog, folder: Path, image: str) -> tuple[str, str]:
    """What is wrong with the image, and what to do."""
    state, detail, fix = of(found(folder, provider(cloud, image), SPOT), "images")
    assert state is State.FAULT
    assert fix
    return detail, fix


def test_an_image_that_is_there_and_quotas_that_are_enough(cloud: AzureCatalog, tmp_path: Path) -> None:
    findings = found(tmp_path, provider(cloud), SPOT, ON_DEMAND)
    assert_well(findings)
    assert cloud.calls["skus"] == 1, "a long list"


def test_a_managed_image(cloud: AzureCatalog, tmp_path: Path) -> None:
    managed(cloud, "northeurope")
    assert "lies in northeurope, and machines of westeurope can't boot from it" in fault(cloud, tmp_path, MANAGED)[0]
    managed(cloud, state="Creating")
    assert fault(cloud, tmp_path, MANAGED)[1] == "wait until it is there"
    managed(cloud, state="Failed")
    assert "is in state Failed" in fault(cloud, tmp_path, MANAGED)[0]
    cloud.records.pop(MANAGED)
    assert "is not there" in fault(cloud, tmp_path, MANAGED)[0]
    assert "is no image's name" in fault(cloud, tmp_path, "ubuntu")[0]


def test_an_image_of_a_gallery_of_another_subscription(cloud: AzureCatalog, tmp_path: Path) -> None:
    assert "is not there" in fault(cloud, tmp_path, OTHERS)[0]
    elsewhere = {"targetRegions": [{"name": "North Europe"}]}
    gallery(cloud, {"1.0.9": {}, "1.0.10": {}, "1.1.0": elsewhere, "1.2.0": {"excludeFromLatest": True}})
    state, detail, _ = of(found(tmp_path, provider(cloud, OTHERS), SPOT), "images")
    assert (state, f"{OTHERS} (1.0.10) x86_64 is there" in detail) == (State.OK, True)
    assert states(found(tmp_path, provider(cloud, f"{OTHERS}/versions/1.2.0"), SPOT), "images") == [State.OK]
    detail, fix = fault(cloud, tmp_path, f"{OTHERS}/versions/1.1.0")
    assert ("has no copy in westeurope" in detail, "target regions" in fix) == (True, True)
    assert "versions: 1.0.9, 1.0.10, 1.1.0, 1.2.0" in fault(cloud, tmp_path, f"{OTHERS}/versions/3.0.0")[0]
    gallery(cloud, {"1.1.0": elsewhere})
    assert "no version in westeurope" in fault(cloud, tmp_path, OTHERS)[0]
    gallery(cloud, {"1.0.0": {"endOfLifeDate": "2020-01-01T00:00:00Z"}})
    assert states(found(tmp_path, provider(cloud, OTHERS), SPOT), "images") == [State.OK, State.NOTE]
    gallery(cloud, {"1.0.0": {}}, architecture="Arm64")
    detail, fix = fault(cloud, tmp_path, OTHERS)
    assert (f"arm64, instance_type {T4} runs x86_64" in detail, "architecture x86_64" in fix) == (True, True)
    gallery(cloud, {"1.0.0": {}}, purchasePlan={"name": "n", "publisher": "p", "product": "o"})
    assert "purchase plan" in fault(cloud, tmp_path, OTHERS)[0]


def test_an_image_of_the_marketplace(cloud: AzureCatalog, tmp_path: Path) -> None:
    detail, fix = fault(cloud, tmp_path, "pub:off:sk:latest")
    assert ("is not in westeurope" in detail, "az vm image list" in fix) == (True, True)
    market(cloud)
    state, detail, _ = of(found(tmp_path, provider(cloud, "pub:off:sk"), SPOT), "images")
    assert (state, "pub:off:sk (1.2.10)" in detail) == (State.OK, True), "the newest"
    assert "is not in westeurope" in fault(cloud, tmp_path, "pub:off:sk:7.7.7")[0]
    market(cloud, imageDeprecationStatus={"imageState": "ScheduledForDeprecation"})
    assert states(found(tmp_path, provider(cloud, "pub:off:sk:latest"), SPOT), "images") == [State.OK, State.NOTE]
    market(cloud, imageDeprecationStatus={"imageState": "Deprecated"})
    assert "is deprecated" in fault(cloud, tmp_path, "pub:off:sk:latest")[0]
    market(cloud, plan={"name": "n", "publisher": "p", "product": "o"})
    assert "purchase plan" in fault(cloud, tmp_path, "pub:off:sk:latest")[0]


def test_quotas_of_spot_machines_and_of_a_family(cloud: AzureCatalog, tmp_path: Path) -> None:
    cloud.use(cores=(100, 8), lowPriorityCores=(3, 0), standardNCASv3_T4Family=(16, 8))
    spot, family = (one for one in found(tmp_path, provider(cloud), SPOT, ON_DEMAND) if one.what == "quotas")
    assert (spot.state, family.state) == (State.FAULT, State.NOTE)
    assert "lowPriorityCores vCPUs (lowPriorityCores) in westeurope is 3 vCPUs (0 in use now)" in spot.detail
    assert "ask for more of lowPriorityCores in westeurope" in spot.fix
    assert "2 of 4 nodes fit" in family.detail
    assert "(8 in use now)" in family.detail
    cloud.use(cores=(4, 0), lowPriorityCores=(-1, 0), standardNCASv3_T4Family=(16, 8))
    assert "(cores) in westeurope is 4" in of(found(tmp_path, provider(cloud), SPOT, ON_DEMAND), "quotas")[1]
    cloud.use(cores=(100, 0), lowPriorityCores=(64, 0))
    assert of(found(tmp_path, provider(cloud), SPOT, ON_DEMAND), "quotas")[0] is State.UNKNOWN


@pytest.mark.parametrize(
    ("denied", "what", "permission", "named"),
    [
        ("images/", "images", "images/read", MANAGED),
        ("galleries/all/images/node/versions", "images", "galleries/images/versions/read", OTHERS),
        (
            "locations/westeurope/publishers",
            "images",
            "locations/publishers/artifacttypes/offers/skus/versions/read",
            "pub:off:sk",
        ),
        ("locations/westeurope/usages", "quotas", "locations/usages/read", MANAGED),
    ],
)
def test_what_may_not_be_asked_is_named(
    cloud: AzureCatalog, tmp_path: Path, denied: str, what: str, permission: str, named: str
) -> None:
    gallery(cloud, {"1.0.0": {}})
    cloud.denied = (denied,)
    assert_not_permitted(of(found(tmp_path, provider(cloud, named), SPOT), what), f"Microsoft.Compute/{permission}")


def test_answers_in_no_shape_tell_nothing(cloud: AzureCatalog, tmp_path: Path) -> None:
    for properties in (5, [5], "x", {"provisioningState": {"a": 1}}):
        cloud.records[MANAGED] = {"location": REGION, "properties": properties}
        cloud.records[f"{ROOT}/providers/Microsoft.Compute/locations/{REGION}/usages"] = {
            "value": [{"name": properties}]
        }
        findings = found(tmp_path, provider(cloud), SPOT)
        assert {one.state for one in findings if one.what == "quotas"} == {State.UNKNOWN}
        assert states(findings, "images") in ([State.UNKNOWN], [State.FAULT])


@pytest.mark.parametrize("limit", [float("inf"), float("nan"), 10**400])
def test_a_limit_that_nobody_can_count_tells_nothing(cloud: AzureCatalog, tmp_path: Path, limit: Any) -> None:
    cloud.use(lowPriorityCores=(limit, 0))
    state, detail, _ = of(found(tmp_path, provider(cloud), SPOT), "quotas")
    assert (state, "an answer can't be read" in detail) == (State.UNKNOWN, True)
