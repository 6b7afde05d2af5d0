"""What is Compute Engine's own: request shapes, names that serve again, operations, quotas, faults that only it has."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.api_core.exceptions
import pytest
from pydantic import ValidationError

from slurm_plugin.cloud.gcp import client, shape
from slurm_plugin.cloud.gcp.errors import ApiError, needs
from slurm_plugin.cloud.provider import InstanceState, Launched, Market, RefusalKind, Refused
from slurm_plugin.config import GcpProvider
from slurm_plugin.config_providers import OfferingConfig
from slurm_plugin.errors import CloudUnavailable
from tests.cloud.stage import listed, patiently, requests, wait_for
from tests.cloud.test_contract_gcp import GcpStage
from tests.fixtures.gce import REGION, Gce, gce


@pytest.fixture
def cloud() -> Iterator[Gce]:
    with gce() as served:
        yield served


def asked(cloud: Gce) -> dict[str, Any]:
    """The body of the only bulk insert."""
    (insert,) = cloud.inserts
    body: dict[str, Any] = insert["body"]
    return body


def test_spot_machine_as_it_is_asked_for(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(
        cloud,
        tmp_path,
        service_account="nodes@p.iam",
        network_tags=("slurm",),
        disk_gb=200,
        placement_policy="compact",
        labels={"team": "a"},
    )
    stage.provider.launch(requests(stage, ["spot-1", "spot-2"]))
    body = asked(cloud)
    assert cloud.inserts[0]["scope"] == f"zones/{REGION}-a"
    assert (body["count"], body["minCount"]) == ("2", "1")
    assert body["perInstanceProperties"] == {n: {"name": n} for n in ("spot-1", "spot-2")}
    properties = body["instanceProperties"]
    assert properties["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "preemptionNoticeDuration": {"seconds": "120"},
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    }
    assert properties["machineType"] == "g2-standard-8"
    assert properties["labels"]["team"] == "a"
    assert re.fullmatch(r"test-[0-9a-f]{12}", properties["labels"]["spotburst-cluster"]), "no upper case in labels"
    assert properties["networkInterfaces"] == [{"subnetwork": f"projects/p/regions/{REGION}/subnetworks/nodes"}]
    assert properties["serviceAccounts"][0]["email"] == "nodes@p.iam"
    assert properties["tags"] == {"items": ["slurm"]}
    (disk,) = properties["disks"]
    assert (disk["boot"], disk["autoDelete"], disk["initializeParams"]["diskSizeGb"]) == (True, True, "200")
    assert disk["initializeParams"]["sourceImage"] == "projects/p/global/images/family/node"
    assert "resourcePolicies" not in properties, "placement is for jobs of several nodes"
    assert "locationPolicy" not in body


def test_gang_under_a_placement_policy(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(cloud, tmp_path, placement_policy="compact")
    stage.provider.launch(requests(stage, ["spot-1", "spot-2"], gang="g"))
    body = asked(cloud)
    assert (body["count"], body["minCount"]) == ("2", "2")
    assert body["instanceProperties"]["resourcePolicies"] == [f"projects/p/regions/{REGION}/resourcePolicies/compact"]


def test_region(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(cloud, tmp_path, zones=(f"{REGION}-b", f"{REGION}-c"))
    stage.zone = "any"
    stage.provider.launch(requests(stage, ["spot-1", "spot-2"], gang="g"))
    body = asked(cloud)
    assert cloud.inserts[0]["scope"] == f"regions/{REGION}"
    assert body["locationPolicy"]["targetShape"] == "ANY_SINGLE_ZONE"
    assert [z["zone"] for z in body["locationPolicy"]["zones"]] == [f"zones/{REGION}-b", f"zones/{REGION}-c"]
    zones = {m.message.zone.rsplit("/", 1)[-1] for m in cloud.machines.values()}
    assert len(zones) == 1
    assert zones <= {f"{REGION}-b", f"{REGION}-c"}


def test_other_markets(cloud: Gce, tmp_path: Path) -> None:
    reservation = {"name": "r1", "instance_type": "g2-standard-8", "zone": f"{REGION}-a"}
    stage = GcpStage(cloud, tmp_path, reservations=[reservation])
    for market, node in ((Market.ON_DEMAND, "n-1"), (Market.RESERVATION, "n-2")):
        stage.provider.launch(requests(stage, [node], market=market))
    plain, reserved = (i["body"]["instanceProperties"] for i in cloud.inserts)
    assert (
        plain["scheduling"] == reserved["scheduling"] == {"onHostMaintenance": "TERMINATE", "automaticRestart": False}
    )
    assert "reservationAffinity" not in plain
    assert reserved["reservationAffinity"]["values"] == ["r1"]


def test_longer_notice_is_left_out_where_the_api_does_not_take_it(cloud: Gce, tmp_path: Path) -> None:
    cloud.knows_notice = False
    stage = GcpStage(cloud, tmp_path)
    answers = patiently(stage, requests(stage, ["spot-1", "spot-2"]))
    assert [type(a) for a in answers] == [Launched] * 2
    assert "preemptionNoticeDuration" not in asked(cloud)["instanceProperties"]["scheduling"]
    patiently(stage, requests(stage, ["spot-3"]))
    assert cloud.calls["POST bulkInsert"] == 3, "refused once, never asked for again"


def node_json(cloud: Gce) -> dict[str, Any]:
    """As the start-up script writes it."""
    items = {i.key: i.value for i in next(iter(cloud.machines.values())).message.metadata.items}
    (encoded,) = re.findall(r"echo '([^']+)' \| base64 -d \| sed", items["startup-script"])
    found: dict[str, Any] = json.loads(base64.b64decode(encoded))
    return found


def test_start_up_script_gives_each_machine_its_own_name(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(cloud, tmp_path)
    stage.provider.launch(requests(stage, ["spot-1", "spot-2"]))
    assert (node_json(cloud)["provider"], node_json(cloud)["notice_seconds"]) == ("gcp", 120.0)
    items = {i.key: i.value for i in next(iter(cloud.machines.values())).message.metadata.items}
    root, programs = tmp_path / "root", tmp_path / "bin"
    programs.mkdir()
    for folder in ("etc/spotburst", "etc/systemd/system"):
        (root / folder).mkdir(parents=True)
    for name, does in (("curl", "printf spot-2"), ("systemctl", 'echo "$*" >>"$CALLS"'), ("hostnamectl", "exit 0")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    script = items["startup-script"].replace(" /etc/", f" {root}/etc/").replace(">/etc/", f">{root}/etc/")
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    subprocess.run(["/bin/sh", "-c", script], env=environ, check=True)
    written = json.loads((root / "etc/spotburst/node.json").read_text())
    assert (written["node"], written["cluster"], written["provider"]) == ("spot-2", "test", "gcp")
    assert "Before=slurmd.service" in (root / "etc/systemd/system/spotburst-agent.service").read_text()
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "restart slurmd.service"


def test_what_is_left_of_a_gang_is_ended_before_it_is_refused(
    cloud: Gce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute Engine rolls an incomplete one back by itself; here it forgets to."""
    whole = Gce.insert

    def careless(self: Gce, zone: str, resource: Any) -> list[tuple[str, str]]:
        resource.min_count = 1
        return whole(self, zone, resource)

    monkeypatch.setattr(Gce, "insert", careless)
    stage = GcpStage(cloud, tmp_path)
    stage.limit(stage.offering(), 1)
    answers = patiently(stage, requests(stage, ["spot-1", "spot-2"], gang="g"))
    assert [a.kind for a in answers if isinstance(a, Refused)] == [RefusalKind.NO_CAPACITY] * 2
    assert stage.living() == {}


def test_many_machines_in_calls_of_a_hundred(cloud: Gce, tmp_path: Path) -> None:
    cloud.page = 500
    stage = GcpStage(cloud, tmp_path)
    wanted = requests(stage, [f"spot-{n}" for n in range(250)])
    answers = stage.provider.launch(wanted)
    assert all(isinstance(a, Launched) for a in answers)
    assert cloud.calls["POST bulkInsert"] == 3
    seen = {i.launch_id: i.node for i in stage.provider.instances()}
    assert seen == {r.launch_id: r.node for r in wanted}
    assert not [path for path in cloud.calls if path.startswith("GET ") and "instances/" in path]
    stage.provider.terminate([a.instance_id for a in answers if isinstance(a, Launched)])
    wait_for(lambda: not stage.provider.instances())


def test_listing_that_lacks_a_zone_is_unknown(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(cloud, tmp_path)
    cloud.silent_zones = (f"{REGION}-c",)
    with pytest.raises(CloudUnavailable, match=f"{REGION}-c"):
        stage.provider.instances()
    cloud.silent_zones = ()
    assert stage.provider.instances() == []


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PROVISIONING", InstanceState.PENDING),
        ("STAGING", InstanceState.PENDING),
        ("RUNNING", InstanceState.RUNNING),
        ("STOPPING", InstanceState.RECLAIMING),
        ("SUSPENDING", InstanceState.STOPPING),
        ("TERMINATED", InstanceState.GONE),
        ("STOPPED", InstanceState.GONE),
        ("SUSPENDED", InstanceState.GONE),
        ("A_WORD_TO_COME", InstanceState.GONE),
    ],
)
def test_states(cloud: Gce, tmp_path: Path, status: str, state: InstanceState) -> None:
    stage = GcpStage(cloud, tmp_path)
    [request] = requests(stage, ["spot-1"])
    [launched] = patiently(stage, [request])
    assert isinstance(launched, Launched)
    stage.machine(launched.instance_id).status = status
    assert listed(stage)[request.launch_id].state is state


def test_spot_machine_that_stops_is_preempted_unless_it_was_ended_here(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(cloud, tmp_path)
    cloud.ending = 60.0
    spot, plain = requests(stage, ["spot-1"]) + requests(stage, ["plain-1"], market=Market.ON_DEMAND)
    answers = patiently(stage, [spot, plain])
    for machine in cloud.machines.values():
        machine.message.status = "STOPPING"
    assert {m.node: m.state for m in listed(stage).values()} == {
        "spot-1": InstanceState.RECLAIMING,
        "plain-1": InstanceState.STOPPING,
    }
    assert listed(stage)[spot.launch_id].notice_id
    stage.provider.terminate([a.instance_id for a in answers if isinstance(a, Launched)])
    assert {m.state for m in listed(stage).values()} == {InstanceState.STOPPING}
    stage.restart()
    assert {m.state for m in listed(stage).values()} == {InstanceState.STOPPING}, "known after a restart"


def test_a_machine_is_ended_again_after_a_restart_that_came_before_the_call(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(cloud, tmp_path)
    [launched] = patiently(stage, requests(stage, ["spot-1"]))
    assert isinstance(launched, Launched)
    stage.provider._ended.note([stage.machine(launched.instance_id).id])
    stage.restart()
    stage.provider.terminate([launched.instance_id])
    assert stage.living() == {}


def test_a_full_disk_holds_up_no_deletion(cloud: Gce, tmp_path: Path) -> None:
    stage = GcpStage(cloud, tmp_path)
    [launched] = patiently(stage, requests(stage, ["spot-1"]))
    assert isinstance(launched, Launched)
    stage.provider._ended._path = Path("/proc/none/ended.json")
    stage.provider.terminate([launched.instance_id])
    assert stage.living() == {}


def test_machine_without_its_metadata_is_ended_by_its_number(cloud: Gce, tmp_path: Path) -> None:
    """Someone has edited it: only the cluster's name is left."""
    stage = GcpStage(cloud, tmp_path)
    patiently(stage, requests(stage, ["spot-1"]))
    (machine,) = cloud.machines.values()
    machine.message.metadata = {"items": [{"key": "spotburst-cluster", "value": "Test"}]}
    (seen,) = stage.provider.instances()
    assert seen.launch_id == ""
    stage.provider.terminate([seen.instance_id])
    wait_for(lambda: not stage.provider.instances())


@pytest.mark.parametrize(
    ("text", "permanent"),
    [
        ("Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-central1.", True),
        ("Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded.  Limit: 4.0 in region us-central1.", True),
        ("Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded.  Limit: 8.0 in region us-central1.", False),
        ("Quota exceeded", False),
    ],
)
def test_quota_below_one_machine_is_permanent(text: str, permanent: bool) -> None:
    refused = ApiError("QUOTA_EXCEEDED", text).refuse("x", "a2-highgpu-8g")
    assert (refused.kind, refused.permanent) == (RefusalKind.QUOTA, permanent)


def test_what_one_machine_takes_of_a_quota() -> None:
    assert needs("a2-highgpu-8g", "NVIDIA_A100_GPUS") == 8
    assert needs("n2-standard-16", "N2_CPUS") == 16
    assert needs("g2-standard-8", "SSD_TOTAL_GB") == 1
    assert needs("e2-medium", "CPUS") == 1
    assert ApiError("QUOTA_EXCEEDED", "x CPUS", None, 8.0).refuse("x", "n2-standard-16").permanent


def test_codes() -> None:
    for code, status, kind in (
        ("rateLimitExceeded", 403, RefusalKind.TRY_LATER),
        ("quotaExceeded", 403, RefusalKind.QUOTA),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", None, RefusalKind.NO_CAPACITY),
        ("VM_MIN_COUNT_NOT_REACHED", None, RefusalKind.NO_CAPACITY),
        ("somethingNew", 400, RefusalKind.MISTAKE),
        ("somethingNew", 503, RefusalKind.TRY_LATER),
    ):
        assert ApiError(code, "", status).kind is kind


def test_an_error_whose_parts_are_no_list_is_told_by_its_code() -> None:
    def refuses() -> None:
        raise google.api_core.exceptions.Forbidden("no", errors=7)  # type: ignore[no-untyped-call]

    with pytest.raises(ApiError, match="no") as told:
        client._sorted(refuses)
    assert told.value.status == 403


def test_labels_of_names_that_fall_together_differ() -> None:
    assert shape.label("gpu-cluster_1") == "gpu-cluster_1"
    odd = {shape.label(name) for name in ("Gpu", "gPu", "gpu", "g.pu", "g" * 63, "g" * 64, "g" * 65)}
    assert len(odd) == 7
    assert all(re.fullmatch(r"[a-z0-9_-]{1,63}", text) for text in odd)


def settings(**more: Any) -> GcpProvider:
    base = {"type": "gcp", "project": "p", "region": REGION, "image": "i", "subnetwork": "s"}
    return GcpProvider.model_validate({**base, **more})


def test_offerings_that_can_not_be_bought_are_said_at_once() -> None:
    def offering(zone: str, market: str = "spot") -> OfferingConfig:
        return OfferingConfig(provider="gcp", instance_type="g2-standard-8", zone=zone, market=Market(market))

    assert settings().unfit(offering("any")) == settings().unfit(offering(f"{REGION}-a")) == ""
    assert "not in region us-central1" in settings().unfit(offering("europe-west4-a"))
    assert "placement_policy" in settings(placement_policy="c").unfit(offering("any"))
    assert "reservations" in settings().unfit(offering(f"{REGION}-a", "reservation"))


@pytest.mark.parametrize("labels", [{"Team": "a"}, {"team": "A"}, {"spotburst-x": "a"}])
def test_labels_that_can_not_be(labels: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        settings(labels=labels)
