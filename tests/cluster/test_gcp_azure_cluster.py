"""sbatch, ResumeProgram, the cloud's own client library, a real slurmd, the job, its reclaim: clusters whose nodes are Google's and Azure's.

The clouds are our own servers of their APIs; their machines run on the embedded cloud, whose metadata speaks Google's and Azure's dialect, with
30 s of notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.store.io_types import Kind
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.ledger import Ledger
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.manager.providers import build
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed
from tests.fixtures.azure import GROUP, azure
from tests.fixtures.booter import Booter, Hosted
from tests.fixtures.booter_named import HostedAzure, HostedGce
from tests.fixtures.cloud_api import CloudApi
from tests.fixtures.gce import REGION, gce

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

STEPS = 150


@dataclass
class Cloud:
    """One of the two, and how burst.yaml has it."""

    name: str
    api: CloudApi
    hosted: Hosted
    settings: dict[str, Any]
    instance_type: str
    zones: tuple[str, str]


@pytest.fixture
def clouds() -> Iterator[list[Cloud]]:
    with gce() as google, azure() as microsoft:
        # Such a project does not know the longer notice: machines are asked for again without.
        google.knows_notice = False
        at_google = {
            "type": "gcp",
            "project": "p",
            "region": REGION,
            "endpoint_url": google.url,
            "image": "projects/p/global/images/family/node",
            "subnetwork": "nodes",
        }
        at_azure = {
            "type": "azure",
            "subscription": "s",
            "resource_group": GROUP,
            "region": "westeurope",
            "endpoint_url": microsoft.url,
            "image": "/subscriptions/s/image",
            "subnet": "/subscriptions/s/subnet",
            "ssh_public_key": "ssh-ed25519 x",
        }
        yield [
            Cloud("gcp", google, HostedGce(google), at_google, "g2-standard-8", (f"{REGION}-a", f"{REGION}-b")),
            Cloud("azure", microsoft, HostedAzure(microsoft), at_azure, "Standard_NC8as_T4_v3", ("1", "2")),
        ]


@pytest.fixture
def cluster(clouds: list[Cloud], make_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """A nodeset and a partition a cloud."""
    plan = default_settings(2, notice=30, suspend_timeout=1)
    (nodeset,), (partition, _) = plan["nodesets"], plan["partitions"]
    plan["checkpoints"] = {"interval": "1s"}
    plan["providers"] |= {c.name: c.settings for c in clouds}
    plan["nodesets"] = [
        {
            **nodeset,
            "name": c.name,
            "nodes": f"{c.name}-[1-2]",
            "offerings": [{"provider": c.name, "instance_type": c.instance_type, "zone": zone} for zone in c.zones],
        }
        for c in clouds
    ]
    plan["partitions"] = [
        {**partition, "name": c.name, "nodesets": [c.name], "default": c is clouds[0]} for c in clouds
    ]
    return make_cluster(settings=plan)


def test_reclaimed_on_each_cloud(cluster: LocalCluster, clouds: list[Cloud], tmp_path: Path) -> None:
    """A job on each, at the same time: launched, reclaimed, urgent commit, requeued, resumed in another zone, bit-identical, given back."""
    with ExitStack() as stack:
        booters = {c.name: stack.enter_context(Booter(c.hosted, cluster)) for c in clouds}
        jobs = {
            c.name: Training(cluster, STEPS, 1.0, tmp_path / c.name, options=(f"--partition={c.name}",)).submit()
            for c in clouds
        }
        lost, left = {}, {}
        for name, job in jobs.items():
            job.until_step(10)
            left[name] = job.node()
            lost[name] = booters[name].reclaim(left[name], 30.0)
        for name, job in jobs.items():

            def resumed(job: Training = job, left: str = left[name]) -> bool:
                newest = job.attempts()[-1]
                return newest.node != left and newest.commits > 0

            cluster.wait_for(resumed, 180, f"job {job.job} to go on elsewhere")
            ended = [e.body for e in job.entries() if e.kind is Kind.INTERRUPTED]
            assert {(e["reason"], e["notice"]["provider"]) for e in ended} == {(f"{name} reclaim", name)}
            urgent = [e.body["notice"] for e in job.entries() if e.kind is Kind.COMMIT and e.body.get("notice")]
            assert urgent, "the last checkpoint before the end was asked for by the notice"
        reference = undisturbed(tmp_path / "undisturbed", STEPS)
        for name, job in jobs.items():
            job.until_finished()
            assert_same(tmp_path / name, reference)
            assert_no_commit_lost(job.entries())
        for cloud in clouds:
            booter = booters[cloud.name]
            machines = {m.offering_id.split("/")[2]: m for m in build(cluster.config, cloud.name).instances()}
            events = Ledger.open_readonly(cluster.config.state_dir / "ledger.db").events()
            bought = [
                e.text.split(" of ")[1].split("/")[2]
                for e in events
                if e.kind == "launched" and f" of {cloud.name}/" in e.text
            ]
            assert bought == list(cloud.zones), "the replacement not in the zone that reclaimed"
            assert machines[cloud.zones[1]].state is InstanceState.RUNNING
            assert lost[cloud.name] in booter.booted
            assert len(booter.booted) == 2
            assert booter.faults == []
            assert cloud.api.calls
        nodes = ",".join(f"{c.name}-[1-2]" for c in clouds)
        cluster.run("scontrol", "update", f"nodename={nodes}", "state=power_down")
        cluster.wait_for(
            lambda: not any(list(c.hosted.running()) for c in clouds), 180, "all machines to be given back"
        )
        assert [b.faults for b in booters.values()] == [[], []]
