"""What goes wrong around launches, on a real Slurm (docs/cases.md): all at the same time, since most of it is waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin import render
from slurm_plugin.cloud.provider import RefusalKind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.slurm.records import Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

PROLOG = """#!/bin/sh
if rm "$FOLDER/$SLURM_JOB_ID" 2>/dev/null; then exit 1; fi
"""


@pytest.fixture
def cluster(make_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Nodesets ``spot``, ``poor`` and ``slow``, each with a partition; machines of ``slow`` never finish booting."""
    plan = default_settings(3, resume_timeout=60, suspend_timeout=1)
    local, (spot,), (partition, _) = plan["providers"]["local"], plan["nodesets"], plan["partitions"]
    plan["providers"]["slow"] = {**local, "boot_time": 3600}
    (offering,) = spot["offerings"]
    plan["nodesets"] += [
        {**spot, "name": "poor", "nodes": "poor-[1-2]", "offerings": [{**offering, "zone": "poor"}]},
        {**spot, "name": "slow", "nodes": "slow-1", "offerings": [{**offering, "provider": "slow"}]},
    ]
    plan["partitions"] += [
        {**partition, "name": name, "nodesets": [name], "default": False} for name in ("poor", "slow")
    ]
    return make_cluster(settings=plan, site={"cred_expire": 5})


def test_launches_that_go_wrong(cluster: LocalCluster, tmp_path: Path) -> None:
    cloud, slow = cluster.cloud("local"), cluster.cloud("slow")
    prolog = tmp_path / "prolog"
    prolog.write_text(PROLOG.replace("$FOLDER", str(tmp_path)))
    prolog.chmod(0o755)
    with cluster.slurm_conf.open("a") as file:
        file.write(f"Prolog={prolog}\n")
    cloud.refuse(RefusalKind.QUOTA, text="you have 12", pool="poor/small-1g/spot")

    def job(name: str) -> Job:
        return next(j for j in cluster.client().jobs() if j.name_id == name)

    def node(name: str) -> frozenset[str]:
        return next(n.states for n in cluster.client().nodes() if n.name == name)

    def machines(nodeset: str) -> list[str]:
        """Ids of all that were ever made."""
        return [m.instance_id for m in cloud.yard.machines() if m.spec["nodeset"] == nodeset]

    held = cluster.submit("echo ran $SLURM_RESTART_COUNT")
    (tmp_path / held).touch()
    too_slow = cluster.submit("true", "--partition=slow")
    too_much = cluster.submit("sleep 600", "--partition=poor", "--nodes=2")

    cluster.wait_for(lambda: machines("spot") and machines("slow"), 120, "machines")
    (never_up,) = machines("slow")

    # 3: nothing is made of a job for which the quota does not suffice, and its user is told.
    cluster.wait_for(lambda: "VcpuLimitExceeded: you have 12" in job(too_much).comment, 120, "the quota's words")
    assert machines("poor") == []
    # 20: slurmctld reads its configuration again while nodes boot, and loses none of them. (Each has an address by now.)
    cluster.run("scontrol", "reconfigure")

    # 2: its nodes go down, which gives the job back to the queue; they come back by themselves.
    cluster.wait_for(lambda: {"DOWN"} <= node("poor-1"), 120, "the node to be given up for now")
    assert job(too_much).has("PENDING")

    # 10: ResumeProgram is called again for a node that runs.
    cluster.run("scontrol", "update", "nodename=spot-3", "state=power_up")
    cluster.wait_for(
        lambda: "IDLE" in node("spot-3") and not node("spot-3") & {"POWERING_UP", "POWER_UP", "POWERED_DOWN"},
        180,
        "a spare node",
    )
    before = machines("spot")
    cluster.run(render.Programs.beside_python().resume, "spot-[1,3]")
    requests = cluster.config.state_dir / "requests"
    cluster.wait_for(lambda: not list(requests.glob("*.json")), 60, "the request to be seen to")
    assert machines("spot") == before

    # 13: a machine that boots for longer than ResumeTimeout is ended, though Slurm takes its node for powered down.
    def ended() -> bool:
        return not any(i.billed for i in slow.instances() if i.instance_id == never_up)

    cluster.wait_for(ended, 240, "the machine that never registered to be ended")
    cluster.run("scancel", too_slow)

    # 23: a prolog that fails once: Slurm holds the job, the manager releases it, and it runs on the spare node.
    cluster.wait_for(lambda: job(held).has("COMPLETED"), 240, "the held job")
    assert cluster.output(held).endswith("\nran 1\n")
    story = cluster.run("spotburst", "describe", held)
    assert "released: Slurm held it after a failed launch" in story

    cluster.wait_for(lambda: len(machines("poor")) == 2, 240, "the quota to be asked again")
    assert not node("poor-1") & {"DOWN"}

    # 25: slurmctld never looked for a machine that was not there, which on 22.05 holds it up for 10 s each time.
    assert "Unable to resolve" not in (cluster.log / "slurmctld.log").read_text()
