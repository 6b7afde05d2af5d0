"""The contract of providers, kept by Azure: its client library against our own server of its API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud.azure import shape
from slurm_plugin.cloud.azure.cloud import AzureCloud
from slurm_plugin.cloud.backoff import Backoff
from slurm_plugin.cloud.provider import InstanceState, Market, Offering, RefusalKind
from slurm_plugin.config import AzureProvider
from tests.cloud.contract import NamesContract
from tests.cloud.stage import NamedStage
from tests.fixtures.azure import GROUP, Azure, azure

REFUSALS = {
    RefusalKind.NO_CAPACITY: (0, "ZonalAllocationFailed", "Allocation failed in the zone."),
    RefusalKind.QUOTA: (
        409,
        "OperationNotAllowed",
        "Operation could not be completed as it results in exceeding approved LowPriorityCores quota. "
        "Current Limit: 10, Current Usage: 8, Additional Required: 8.",
    ),
    RefusalKind.PRICE: (409, "OperationNotAllowed", "The max price is below the current price of the VM size."),
    RefusalKind.TRY_LATER: (500, "InternalServerError", "Encountered internal server error."),
    RefusalKind.MISTAKE: (403, "AuthorizationFailed", "The client does not have authorization to perform the action."),
}


class AzureStage(NamedStage):
    cloud: Azure
    under_way = ("Creating", InstanceState.PENDING)
    taken = ("InvalidParameter", "not this cluster's")

    def __init__(self, cloud: Azure, folder: Path, **settings: Any) -> None:
        self.cloud, self.folder = cloud, folder
        names = {"subscription": "s", "resource_group": GROUP, "region": "westeurope", "endpoint_url": cloud.url}
        needed = {
            "image": "/subscriptions/s/image",
            "subnet": "/subscriptions/s/subnet",
            "ssh_public_key": "ssh-ed25519 x",
        }
        self.config = AzureProvider.model_validate({"type": "azure", **names, **needed, **settings})
        self.restart()

    def restart(self) -> None:
        self.provider: AzureCloud = self.made("test", self.state)

    def other(self) -> AzureCloud:
        return self.made("other", self.folder / "other")

    def impatient(self) -> None:
        self.provider.patience = 0.1

    def done(self) -> None:
        for machine in self.cloud.machines.values():
            machine.ready = 0.0

    def made(self, cluster: str, state: Path) -> AzureCloud:
        provider = AzureCloud(
            "azure", self.config, cluster=cluster, state_dir=state, slurm_conf=Path("/etc/slurm/slurm.conf")
        )
        provider.api._reads, provider.api._writes = Backoff(first=0.02, longest=0.1), Backoff(first=0.02, longest=0.1)
        return provider

    def offering(self, market: Market = Market.SPOT) -> Offering:
        return Offering("azure", "westeurope", "1", "Standard_NC8", market)

    def living(self) -> dict[str, str]:
        with self.cloud.lock:
            self.cloud.reap()
            mine = [
                m for m in self.cloud.machines.values() if m.ends is None and m.fails is None and m.power == "running"
            ]
        read = [m for one in mine if (m := shape.read(one.shown(True), "test")) is not None]
        return {m.instance_id: m.name for m in read}

    def limit(self, offering: Offering, count: int) -> None:
        self.cloud.limits[offering.market.value] = count

    def refuse(self, kind: RefusalKind) -> None:
        self.cloud.refusals.append(REFUSALS[kind])

    def stop(self, instance_id: str) -> None:
        self.cloud.machines[instance_id.split("/")[0]].power = "deallocated"

    def vanish(self, instance_id: str) -> None:
        del self.cloud.machines[instance_id.split("/")[0]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[AzureStage]:
    with azure() as cloud:
        yield AzureStage(cloud, tmp_path)


class TestAzure(NamesContract):
    pass
