"""sbatch, ResumeProgram, CreateFleet, a real slurmd, the job: a cluster whose nodes are EC2's, on moto and the embedded cloud's machines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin import render
from slurm_plugin.cloud import tags
from slurm_plugin.cloud.aws.events import SPOT_WARNING
from slurm_plugin.ledger import Ledger
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cloud.test_aws_events import config
from tests.fixtures.booter import Booter
from tests.fixtures.booter_ec2 import HostedEc2
from tests.fixtures.eventbridge import EventBridge
from tests.fixtures.moto_ec2 import Ec2Server, settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

TYPE = "g5.xlarge"


SCRIPT = r"""srun bash -c '
    echo "node $SLURMD_NODENAME $(tr -d "\n" </run/spotburst/node.json)"
    [ "$SLURM_RESTART_COUNT" ] && exit 0
    sleep 300'"""
"""Each task tells its node and what the node was told; the first attempt does not end by itself."""


@pytest.fixture
def server() -> Iterator[Ec2Server]:
    with pytest.MonkeyPatch.context() as patch, Ec2Server() as server:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        server.reset()
        yield server


@pytest.fixture
def bridge(server: Ec2Server, tmp_path: Path) -> Iterator[EventBridge]:
    with EventBridge() as bridge:
        bridge.set_up(render.aws_events(config(tmp_path), "ec2"))
        yield bridge


@pytest.fixture
def cluster(server: Ec2Server, bridge: EventBridge, make_cluster: Any) -> LocalCluster:
    plan = default_settings(3, suspend_timeout=1, suspend_time=12)
    plan["providers"]["ec2"] = settings(server, events_queue=bridge.url)
    plan["nodesets"][0]["offerings"] = [
        {"provider": "ec2", "instance_type": TYPE, "zone": zone} for zone in ("eu-west-1a", "eu-west-1b")
    ]
    made: LocalCluster = make_cluster(settings=plan)
    return made


def living(server: Ec2Server) -> dict[str, Any]:
    """By instance id."""
    return {i.id: i for i in server.living({tags.CLUSTER: "local"})}


def told(cluster: LocalCluster, job: str) -> dict[str, dict[str, Any]]:
    """What the job's tasks have said so far, by node."""
    lines = [line.split(" ", 2) for line in cluster.output(job).splitlines() if line.startswith("node ")]
    return {node: json.loads(config) for _, node, config in lines}


def test_a_job_of_two_nodes_on_ec2_and_its_reclaim(
    cluster: LocalCluster, server: Ec2Server, bridge: EventBridge
) -> None:
    """Zone a has one machine: none is taken there, in the same resume zone b gives both. One is reclaimed, which EventBridge tells
    first: its node is drained. The job comes back, and when it has ended all is given back."""
    zone_a, zone_b = server.subnet("eu-west-1a"), server.subnet("eu-west-1b")
    server.faults.limits[TYPE, zone_a, "spot"] = 1
    with Booter(HostedEc2(server), cluster) as booter:

        def wait_for(predicate: Any, timeout: float, what: str) -> Any:
            def look() -> Any:
                assert booter.faults == []
                return predicate()

            return cluster.wait_for(look, timeout, what)

        job = cluster.submit(SCRIPT, "--nodes=2", "--requeue")
        first = wait_for(lambda: len(found := told(cluster, job)) == 2 and found, 240, "both nodes' tasks")
        assert {m.subnet_id for m in living(server).values()} == {zone_b}
        # By token: one whose answer is late is asked for again.
        fleets = {p["ClientToken"]: p for a, p in server.requests if a == "CreateFleet"}
        assert [p["SpotOptions.MinTargetCapacity"] for p in fleets.values()] == ["2", "2"]
        assert server.calls.count("CreateLaunchTemplate") == 1
        machines = {booter.node_of(i): m for i, m in living(server).items()}
        for node, config in first.items():
            assert (config["node"], config["provider"], config["nodeset"]) == (node, "aws", "spot")
            assert config["offering"] == f"ec2/eu-west-1/eu-west-1b/{TYPE}/spot"
            assert server.tags(machines[node])[tags.NODE] == node
        events = Ledger.open_readonly(cluster.config.state_dir / "ledger.db").events()
        refused = [e for e in events if e.kind == "refused"]
        assert len(refused) == 2
        assert all(
            "eu-west-1a" in e.text and "InsufficientInstanceCapacity: There is no Spot" in e.text for e in refused
        )

        lost = sorted(first)[0]
        detail = {"instance-id": booter.instance_of(lost), "instance-action": "terminate"}
        bridge.emit(SPOT_WARNING, [detail], time.time())
        told_by_cloud = ", told by the cloud"
        wait_for(lambda: told_by_cloud in cluster.run("scontrol", "show", "node", lost), 120, "the drain")
        wait_for(lambda: not bridge.left(), 60, "the message to be deleted")
        instance_id = booter.reclaim(lost, 6.0)
        wait_for(lambda: "COMPLETED" in cluster.run("scontrol", "show", "job", job, check=False), 240, "the job's end")
        assert cluster.output(job).count("node ") == 4, "two attempts of two tasks"
        wait_for(lambda: instance_id not in living(server), 120, "EC2 to take its machine")
        wait_for(lambda: not living(server), 180, "all machines to be given back")
    assert booter.faults == []
