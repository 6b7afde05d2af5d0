"""The contract of providers, kept by Compute Engine: Google's client library against our own server of its API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1")

from google.cloud import compute_v1

from slurm_plugin.cloud.backoff import Backoff
from slurm_plugin.cloud.gcp.cloud import GcpCloud
from slurm_plugin.cloud.provider import Market, Offering, RefusalKind
from slurm_plugin.config import GcpProvider
from tests.cloud.contract import ProviderContract, Stage
from tests.fixtures.gce import LIVING, REGION, Gce, gce

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


def quick(provider: GcpCloud) -> None:
    """Its pauses are short: nobody here counts calls by the minute."""
    provider.api._reads, provider.api._writes = Backoff(first=0.02, longest=0.1), Backoff(first=0.02, longest=0.1)


class GcpStage(Stage):
    def __init__(self, cloud: Gce, folder: Path, **settings: Any) -> None:
        self.cloud, self.folder = cloud, folder
        base = {"type": "gcp", "project": "p", "region": REGION, "endpoint_url": cloud.url}
        image = "projects/p/global/images/family/node"
        self.config = GcpProvider(**{**base, "image": image, "subnetwork": "nodes", **settings})  # type: ignore[arg-type]
        self.zone = f"{REGION}-a"
        self.restart()

    def restart(self) -> None:
        self.provider: GcpCloud = GcpCloud(
            "gcp",
            self.config,
            cluster="Test",
            state_dir=self.folder / "state",
            slurm_conf=Path("/etc/slurm/slurm.conf"),
        )
        quick(self.provider)

    def offering(self, market: Market = Market.SPOT) -> Offering:
        return Offering("gcp", REGION, self.zone, "g2-standard-8", market)

    def living(self) -> dict[str, str]:
        from slurm_plugin.cloud.gcp import shape

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
        if kind not in REFUSALS:
            pytest.skip(f"Compute Engine refuses nothing for {kind.value}")
        self.cloud.refusals.append(REFUSALS[kind])

    def unreachable(self, on: bool) -> None:
        self.cloud.unreachable = on

    def lose_answers(self, count: int) -> None:
        self.cloud.lose = count

    def throttle(self, count: int) -> None:
        self.cloud.throttles = count

    def lag(self, seconds: float) -> None:
        self.cloud.lag = seconds

    def break_listing(self) -> None:
        self.cloud.break_page = True

    def reclaim(self, instance_id: str) -> None:
        machine = self.machine(instance_id)
        machine.status = "PENDING_STOP"
        machine.resource_status = compute_v1.ResourceStatus(
            shutdown_details={
                "request_timestamp": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                "max_duration": {"seconds": 120},
                "stop_state": "PENDING_STOP",
            }
        )

    def stop(self, instance_id: str) -> None:
        self.machine(instance_id).status = "TERMINATED"

    def vanish(self, instance_id: str) -> None:
        del self.cloud.machines[self.machine(instance_id).id]

    def foreign(self) -> str:
        other = GcpCloud(
            "gcp", self.config, cluster="other", state_dir=self.folder / "other", slurm_conf=Path("/etc/slurm.conf")
        )
        from tests.cloud.contract import requests

        [answer] = other.launch(requests(self, ["other-1"]))
        return str(getattr(answer, "instance_id", ""))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GcpStage]:
    with gce() as cloud:
        yield GcpStage(cloud, tmp_path)


class TestZone(ProviderContract):
    """Offerings of one zone."""


class TestRegion(ProviderContract):
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
