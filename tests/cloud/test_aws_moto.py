"""aws on moto: templates, fleets, retries, names and listings beyond the contract."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.aws import listing, names
from slurm_plugin.cloud.aws.journal import Journal
from slurm_plugin.cloud.aws.template import Templates
from slurm_plugin.cloud.provider import InstanceState, Launched, LaunchRequest, RefusalKind, Refused
from slurm_plugin.errors import CloudUnavailable
from tests.cloud.stage import listed, patiently, requests
from tests.fixtures.ec2_stage import TYPE, ZONE, Ec2Stage


def user_data_of(data: dict[str, Any]) -> dict[str, Any]:
    text = base64.b64decode(data["UserData"]).decode()
    assert text.startswith("#cloud-config\n")
    return dict(yaml.safe_load(text))


def test_templates_are_made_once_and_versioned_when_they_change(ec2: Ec2Stage) -> None:
    ask = lambda: patiently(ec2, requests(ec2, ["spot-1"]))  # noqa: E731
    assert isinstance(ask()[0], Launched)
    ec2.restart()
    assert isinstance(ask()[0], Launched)
    client = ec2.client()
    versions = client.describe_launch_template_versions(LaunchTemplateName="spotburst-test-ec2-spot")
    [version] = versions["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert data["ImageId"] == ec2.config.image
    node_json = {f["path"]: f["content"] for f in user_data_of(data)["write_files"]}[
        "/usr/local/lib/spotburst/node.json"
    ]
    assert json.loads(base64.b64decode(node_json)) == {"cluster": "test", "nodeset": "spot"}
    ec2.config = ec2.config.model_copy(update={"instance_profile": "other"})
    ec2.restart()
    assert isinstance(ask()[0], Launched)
    versions = client.describe_launch_template_versions(LaunchTemplateName="spotburst-test-ec2-spot")
    assert sorted(v["VersionNumber"] for v in versions["LaunchTemplateVersions"]) == [1, 2]
    used = [p for a, p in ec2.server.requests if a == "CreateFleet"]
    assert [p["LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version"] for p in used] == ["1", "1", "2"]


def test_a_template_that_somebody_deleted_is_made_anew(ec2: Ec2Stage) -> None:
    """Under the token of the first one EC2 would only tell of that one again."""
    assert isinstance(patiently(ec2, requests(ec2, ["spot-1"]))[0], Launched)
    client, name = ec2.client(), "spotburst-test-ec2-spot"
    client.delete_launch_template(LaunchTemplateName=name)
    assert isinstance(patiently(ec2, requests(ec2, ["spot-2"]))[0], Launched)
    assert len(client.describe_launch_template_versions(LaunchTemplateName=name)["LaunchTemplateVersions"]) == 1


def test_two_providers_may_have_templates_of_the_same_contents(ec2: Ec2Stage) -> None:
    data = {"ImageId": ec2.config.image}
    for name in ("ec2", "other"):
        made = Templates(ec2.provider.ec2, "test", name).ensure("spot", None, data)
        assert made == (f"spotburst-test-{name}-spot", "1")


def test_machines_have_what_the_template_says(ec2: Ec2Stage) -> None:
    ec2.config = ec2.config.model_copy(update={"tags": {"team": "ml"}})
    ec2.restart()
    [launched] = patiently(ec2, requests(ec2, ["spot-1"]))
    assert isinstance(launched, Launched)
    [machine] = ec2.server.living({tags.CLUSTER: "test"})
    assert (machine.instance_type, machine.subnet_id) == (TYPE, ec2.config.subnets[ZONE])
    assert ec2.server.tags(machine).items() >= {"team": "ml", tags.NODE: "spot-1", "Name": "test spot"}.items()


def test_a_zone_left_open_takes_what_there_is(ec2: Ec2Stage) -> None:
    """Overrides of type and subnet: what one pool lacks another gives; a gang comes from one zone."""
    ec2.limit(ec2.offering(), 1)
    anywhere = ec2.offering(zone="any")
    ask = [
        LaunchRequest(r.launch_id, r.node, r.nodeset, anywhere) for r in requests(ec2, ["spot-1", "spot-2", "spot-3"])
    ]
    assert [type(a) for a in patiently(ec2, ask)] == [Launched] * 3
    living = ec2.server.living({tags.CLUSTER: "test"})
    assert len({m.subnet_id for m in living}) == 2
    gang = [
        LaunchRequest(r.launch_id, r.node, r.nodeset, anywhere, gang="g") for r in requests(ec2, ["spot-4", "spot-5"])
    ]
    assert [type(a) for a in patiently(ec2, gang)] == [Launched] * 2
    fresh = [m for m in ec2.server.living({tags.CLUSTER: "test"}) if m not in living]
    assert {m.subnet_id for m in fresh} == {ec2.config.subnets["eu-west-1b"]}


def test_types_that_do_not_see_later_tags_are_asked_for_one_by_one(ec2: Ec2Stage) -> None:
    old = ec2.offering(instance_type="p3.2xlarge")
    ask = [LaunchRequest(r.launch_id, r.node, r.nodeset, old) for r in requests(ec2, ["spot-1", "spot-2"])]
    assert [type(a) for a in patiently(ec2, ask)] == [Launched] * 2
    assert ec2.server.calls.count("CreateFleet") == 2
    assert "CreateTags" not in ec2.server.calls
    ec2.restart()
    assert {r.launch_id: r.node for r in ask} == {i.launch_id: i.node for i in listed(ec2).values()}
    gang = [LaunchRequest(r.launch_id, r.node, r.nodeset, old, gang="g") for r in requests(ec2, ["spot-3", "spot-4"])]
    refused = patiently(ec2, gang)
    assert [(a.kind, a.code) for a in refused if isinstance(a, Refused)] == [
        (RefusalKind.MISTAKE, "NotBuiltOnNitro")
    ] * 2


def test_what_was_put_off_within_a_fleet_is_asked_for_anew(ec2: Ec2Stage) -> None:
    """The fleet's own answer stays the same for ever, so the rest is a fleet of its own."""
    ec2.server.faults.fleet_errors.append(("RequestLimitExceeded", "Request limit exceeded."))
    ask = requests(ec2, ["spot-1", "spot-2"])
    [first, _] = ec2.provider.launch(ask)
    assert isinstance(first, Refused)
    assert first.kind is RefusalKind.TRY_LATER
    ec2.restart()
    assert [type(a) for a in patiently(ec2, ask)] == [Launched] * 2
    used = [p["ClientToken"] for a, p in ec2.server.requests if a == "CreateFleet"]
    assert len(set(used)) == 2
    assert used[0] == ask[0].launch_id, "the first token is the launch id itself"


def test_a_fleet_that_comes_empty_and_without_an_error_is_no_capacity(ec2: Ec2Stage) -> None:
    """HTTP 200, no instances, no errors, nothing raised (docs/cases.md, 5)."""
    ec2.server.faults.fleet_errors.append(("", ""))
    answers = ec2.provider.launch(requests(ec2, ["spot-1", "spot-2"]))
    assert [(a.kind, a.code) for a in answers if isinstance(a, Refused)] == [
        (RefusalKind.NO_CAPACITY, "EmptyFleet")
    ] * 2
    assert ec2.living() == {}


def test_a_retry_is_the_same_call_though_the_settings_have_changed(ec2: Ec2Stage) -> None:
    ec2.lose_answers(1)
    ask = requests(ec2, ["spot-1", "spot-2", "spot-3"])
    with pytest.raises(CloudUnavailable):
        ec2.provider.launch(ask)
    ec2.config = ec2.config.model_copy(update={"instance_profile": "other", "tags": {"team": "b"}})
    ec2.restart()
    [answer] = ec2.provider.launch(ask[1:2])
    assert isinstance(answer, Launched)
    assert len(ec2.living()) == 3
    assert set(listed(ec2)) == {r.launch_id for r in ask}, "those not asked for any more are known too"


def test_a_broken_off_launch_is_named_by_the_next_listing(ec2: Ec2Stage) -> None:
    ask = requests(ec2, [f"spot-{n}" for n in range(1, 13)])
    ec2.server.faults.errors += [("CreateTags", 500, "InternalError", "x")] * 1
    patiently(ec2, ask)
    assert {r.launch_id: r.node for r in ask} == {i.launch_id: i.node for i in listed(ec2).values()}
    told = {names.read(ec2.server.tags(m)) for m in ec2.server.living({tags.CLUSTER: "test"})}
    assert told == {(r.launch_id, r.node) for r in ask}


def test_all_is_found_again_by_tags_alone(ec2: Ec2Stage, tmp_path: Path) -> None:
    """Ledger and journal lost: node, launch id and offering come from the tags."""
    ask = requests(ec2, [f"spot-{n}" for n in range(1, 13)])
    patiently(ec2, ask)
    ec2.folder = tmp_path / "elsewhere"
    ec2.restart()
    found = listed(ec2)
    assert {r.launch_id: (r.node, r.nodeset, r.offering.id) for r in ask} == {
        i.launch_id: (i.node, i.nodeset, i.offering_id) for i in found.values()
    }


def test_a_nameless_machine_whose_journal_is_lost_is_listed_under_its_instance_id(
    ec2: Ec2Stage, tmp_path: Path
) -> None:
    ec2.server.faults.errors += [("CreateTags", 500, "InternalError", "x")] * 2
    patiently(ec2, requests(ec2, ["spot-1", "spot-2"]))
    ec2.folder = tmp_path / "elsewhere"
    ec2.restart()
    assert all(i.node == i.instance_id == i.launch_id for i in ec2.provider.instances())
    ec2.provider.terminate([i.instance_id for i in ec2.provider.instances()])
    assert not ec2.living()


def test_a_damaged_journal_is_no_journal(tmp_path: Path) -> None:
    folder = tmp_path / "launches"
    folder.mkdir()
    base = launch_ids.batch(1)[0]
    for name, text in (
        (f"{base}.json", "{"),
        ("a.json", "[]"),
        ("b.json", '{"base": 7, "fleets": []}'),
        ("c.json", "\0"),
    ):
        (folder / name).write_text(text)
    assert Journal(folder).notes() == []


def test_a_full_disk_launches_nothing(ec2: Ec2Stage) -> None:
    (ec2.folder / "launches").write_text("a file where the folder should be")
    with pytest.raises(CloudUnavailable, match="can't be noted, so it is not made"):
        ec2.provider.launch(requests(ec2, ["spot-1"]))
    assert "CreateFleet" not in ec2.server.calls


def test_sixty_machines_are_one_fleet_and_sixteen_names(ec2: Ec2Stage) -> None:
    ask = requests(ec2, [f"spot-{n}" for n in range(1, 61)])
    assert [type(a) for a in patiently(ec2, ask)] == [Launched] * 60
    assert ec2.server.calls.count("CreateFleet") == 1
    assert ec2.server.calls.count("CreateTags") == 16
    assert {r.launch_id: r.node for r in ask} == {i.launch_id: i.node for i in listed(ec2).values()}
    ec2.server.calls.clear()
    ec2.provider.terminate([i.instance_id for i in listed(ec2).values()])
    assert ec2.server.calls.count("TerminateInstances") == 1
    assert not ec2.living()


def test_listings_have_pages(ec2: Ec2Stage) -> None:
    ec2.server.faults.page = 2
    ask = requests(ec2, [f"spot-{n}" for n in range(1, 8)])
    patiently(ec2, ask)
    ec2.server.calls.clear()
    assert len(ec2.provider.instances()) == 7
    assert ec2.server.calls.count("DescribeInstances") >= 4


def test_no_credentials_and_no_endpoint_are_told_apart(ec2: Ec2Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is a mistake that the user must hear of, the second concludes nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    ec2.provider.ec2._clients = {}
    [answer] = ec2.provider.launch(requests(ec2, ["spot-1"]))
    assert isinstance(answer, Refused)
    assert (answer.kind, answer.code) == (RefusalKind.MISTAKE, "NoCredentialsError")
    with pytest.raises(CloudUnavailable, match="NoCredentialsError"):
        ec2.provider.instances()


def test_spot_machines_that_stop_are_lost_by_themselves() -> None:
    """docs/cases.md, 14."""
    record = {"InstanceId": "i-1", "State": {"Name": "stopped"}, "InstanceLifecycle": "spot", "Tags": []}
    machine = listing.read(record).machine
    assert machine.state is InstanceState.GONE
    assert machine.billed
