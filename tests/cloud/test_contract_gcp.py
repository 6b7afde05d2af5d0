"""The contract of providers, kept by Compute Engine: Google's client library against our own server of its API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import compute_v1

from slurm_plugin.cloud.backoff import Backoff
from slurm_plugin.cloud.gcp import shape
from slurm_plugin.cloud.gcp.cloud import GcpCloud
from slurm_plugin.cloud.provider import InstanceState, Market, Offering, RefusalKind
from slurm_plugin.config import GcpProvider
from tests.cloud.contract import NamesContract, ReclaimContract
from tests.cloud.stage import NamedStage, ReclaimingStage
from tests.fixtures.gce import LIVING, NOTICE, REGION, Gce, gce

REFUSALS = {
    RefusalKind.NO_CAPACITY: ("operation", "ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources"),
    RefusalKind.QUOTA: (
        "operation",
        "QUOTA_EXCEEDED",
        "Quota 'PREEMPTIBLE_CPUS' exceeded.  Limit: 64.0 in region us-central1.",
    ),
    RefusalKind.TRY_LATER: ("call", "backendError", "Backend Error"),
    RefusalKind.MISTAKE: ("call", "forbidden", "Required 'compute.instances.create' permission for 'projects/p'"),
}


class GcpStage(NamedStage, ReclaimingStage):
    cloud: Gce
    under_way = ("OperationRunning", InstanceState.RUNNING)
    taken = ("RESOURCE_ALREADY_EXISTS", "already exists")

    def __init__(self, cloud: Gce, folder: Path, **settings: Any) -> None:
        self.cloud, self.folder = cloud, folder
        base = {"type": "gcp", "project": "p", "region": REGION, "endpoint_url": cloud.url}
        image = "projects/p/global/images/family/node"
        self.config = GcpProvider(**{**base, "image": image, "subnetwork": "nodes", **settings})  # type: ignore[arg-type]
        self.zone = f"{REGION}-a"
        self.restart()

    def restart(self) -> None:
        self.provider: GcpCloud = self.made("Test", self.state)

    def other(self) -> GcpCloud:
        return self.made("other", self.folder / "other")

    def impatient(self) -> None:
        self.provider.patience = 0.1

    def done(self) -> None:
        self.cloud.operations = {name: (0.0, told) for name, (_, told) in self.cloud.operations.items()}

    def made(self, cluster: str, state: Path) -> GcpCloud:
        slurm_conf = Path("/etc/slurm/slurm.conf")
        provider = GcpCloud("gcp", self.config, cluster=cluster, state_dir=state, slurm_conf=slurm_conf)
        # Nobody here counts calls by the minute.
        provider.api._reads, provider.api._writes = Backoff(first=0.02, longest=0.1), Backoff(first=0.02, longest=0.1)
        return provider

    def offering(self, market: Market = Market.SPOT) -> Offering:
        return Offering("gcp", REGION, self.zone, "g2-standard-8", market)

    def living(self) -> dict[str, str]:
        with self.cloud.lock:
            self.cloud.reap()
            mine = [m.message for m in self.cloud.machines.values() if m.ends is None and m.message.status in LIVING]
        found = [m for message in mine if (m := shape.read(compute_v1.Instance.pb(message), "Test")) is not None]
        assert len({m.instance_id for m in found}) == len(found), "two machines under one id"
        return {m.instance_id: m.name for m in found}

    def machine(self, instance_id: str) -> compute_v1.Instance:
        name = instance_id.split("/")[0]
        return next(m.message for m in self.cloud.machines.values() if m.message.name == name)

    def limit(self, offering: Offering, count: int) -> None:
        self.cloud.limits[(offering.zone, offering.market.value)] = count

    def refuse(self, kind: RefusalKind) -> None:
        self.cloud.refusals.append(REFUSALS[kind])

    def reclaim(self, instance_id: str) -> None:
        self.cloud.preempt(self.cloud.machines[self.machine(instance_id).id], time.time() + NOTICE)

    def stop(self, instance_id: str) -> None:
        self.machine(instance_id).status = "TERMINATED"

    def vanish(self, instance_id: str) -> None:
        del self.cloud.machines[self.machine(instance_id).id]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GcpStage]:
    with gce() as cloud:
        yield GcpStage(cloud, tmp_path)


class GcpContract(NamesContract, ReclaimContract):
    never = (RefusalKind.PRICE,)  # spot machines have no price of one's own to offer


class TestZone(GcpContract):
    """Offerings of one zone."""


class TestRegion(GcpContract):
    """Offerings of zone ``any``."""

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[GcpStage]:
        with gce() as cloud:
            made = AnyZone(cloud, tmp_path, zones=(f"{REGION}-a", f"{REGION}-b"))
            made.zone = "any"
            yield made


class AnyZone(GcpStage):
    def limit(self, offering: Offering, count: int) -> None:
        self.cloud.limits[(f"{REGION}-a", offering.market.value)] = count
        self.cloud.limits[(f"{REGION}-b", offering.market.value)] = 0
