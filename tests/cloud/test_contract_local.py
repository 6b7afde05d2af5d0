"""The contract of providers, kept by the embedded cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cloud.local import host
from slurm_plugin.cloud.local.cloud import LocalCloud, destroy_all
from slurm_plugin.cloud.provider import InstanceState, Market, Offering, RefusalKind
from slurm_plugin.config import LocalProvider
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.reserve import reserve_network
from tests.cloud.contract import ReclaimContract
from tests.cloud.stage import ReclaimingStage, wait_for

pytestmark = pytest.mark.cluster


class LocalStage(ReclaimingStage):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        slurmd = folder / "slurm" / "sbin" / "slurmd"
        slurmd.parent.mkdir(parents=True)
        slurmd.write_text("#!/bin/sh\nexec sleep 1000\n")
        slurmd.chmod(0o755)
        bridge, subnet = reserve_network(folder / "state")
        self.config = LocalProvider(type="local", subnet=str(subnet), bridge=bridge)
        self.restart()

    def restart(self) -> None:
        self.provider: LocalCloud = LocalCloud(
            "local",
            self.config,
            cluster="test",
            state_dir=self.folder / "state",
            slurm_conf=self.folder / "slurm.conf",
            slurm_root=self.folder / "slurm",
        )

    def offering(self, market: Market = Market.SPOT) -> Offering:
        return Offering("local", "local", "zone-a", "small", market)

    def living(self) -> dict[str, str]:
        return {
            m.instance_id: m.spec["node"]
            for m in self.provider.yard.machines()
            if not m.gone and "terminate" not in m.control
        }

    def limit(self, offering: Offering, count: int) -> None:
        self.provider.set_capacity(offering.zone, offering.instance_type, offering.market, count)

    def refuse(self, kind: RefusalKind) -> None:
        self.provider.refuse(kind)

    def unreachable(self, on: bool) -> None:
        self.provider.set_reachable(not on)

    def reclaim(self, instance_id: str) -> None:
        self.provider.reclaim(self.living()[instance_id], 100.0)

    def vanish(self, instance_id: str) -> None:
        node = self.living()[instance_id]

        def running() -> bool:
            return any(i.node == node and i.state is InstanceState.RUNNING for i in self.provider.instances())

        wait_for(running)
        self.provider.vanish(node)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LocalStage]:
    try:
        host.require(("ip", "unshare", "bridge"))
    except LocalCloudError as error:
        pytest.skip(str(error))
    try:
        yield LocalStage(tmp_path)
    finally:
        destroy_all(tmp_path / "state")


class TestLocal(ReclaimContract):
    pass
