"""aws: what is asked of EC2, and how its answers are read. The contract is in test_contract_aws.py."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin import render
from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.aws import fleet, listing, names, template
from slurm_plugin.cloud.aws.errors import ApiError, most_telling
from slurm_plugin.cloud.aws.journal import Journal
from slurm_plugin.cloud.provider import InstanceState, Launched, LaunchRequest, Market, Offering, RefusalKind, Refused
from slurm_plugin.config import AwsProvider
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.slurm.hostlist import expand
from tests.cloud.contract import listed, patiently, requests
from tests.fixtures.ec2_stage import TYPE, ZONE, Ec2Stage

CONFIG = AwsProvider(
    type="aws",
    region="eu-west-1",
    image="ami-1",
    subnets={"eu-west-1a": "subnet-a", "eu-west-1b": "subnet-b"},
    security_groups=("sg-1",),
    instance_profile="node",
    tags={"team": "ml"},
    reservations=(
        {"id": "cr-1", "instance_type": "p4d.24xlarge", "zone": "eu-west-1a"},
        {"id": "cr-2", "instance_type": "p5.48xlarge", "zone": "eu-west-1b", "kind": "capacity-block"},
    ),
)


def offering(market: Market = Market.SPOT, zone: str = "eu-west-1a", types: str = "g5.xlarge") -> Offering:
    return Offering("ec2", "eu-west-1", zone, types, market)


def asked(what: Offering, count: int = 3, *, whole: bool = False) -> dict[str, Any]:
    return fleet.request(CONFIG, what, ("spotburst-x", "4"), {"k": "v"}, token="t-1", count=count, all_or_nothing=whole)


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    return botocore.session.get_session().get_service_model("ec2")


def member_of(shape: Any, path: str) -> Any:
    """The shape that a dotted path of members names. Fails for a name that the model lacks."""
    for part in path.split("."):
        while shape.type_name == "list":
            shape = shape.member
        assert part in shape.members, f"{shape.name} has no {part}"
        shape = shape.members[part]
    return shape


@pytest.mark.parametrize(
    "what",
    [
        offering(),
        offering(Market.ON_DEMAND, "any"),
        offering(zone="any", types="g5.xlarge, g6.xlarge"),
        offering(Market.RESERVATION, types="p4d.24xlarge"),
        offering(Market.RESERVATION, "eu-west-1b", "p5.48xlarge"),
    ],
    ids=lambda o: o.id,
)
@pytest.mark.parametrize("whole", [False, True])
def test_requests_fit_botocores_model(model: Any, what: Offering, whole: bool) -> None:
    from botocore.validate import ParamValidator

    shape = model.operation_model("CreateFleet").input_shape
    request = asked(what, whole=whole)
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()
    capacity = request["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
    assert capacity in member_of(shape, "TargetCapacitySpecification.DefaultTargetCapacityType").enum
    if "SpotOptions" in request:
        assert request["SpotOptions"]["AllocationStrategy"] in member_of(shape, "SpotOptions.AllocationStrategy").enum
    for override in request["LaunchTemplateConfigs"][0]["Overrides"]:
        assert override["InstanceType"] in member_of(shape, "LaunchTemplateConfigs.Overrides.InstanceType").enum


@pytest.mark.parametrize("reservation", [None, *CONFIG.reservations])
def test_templates_fit_botocores_model(model: Any, reservation: Any) -> None:
    from botocore.validate import ParamValidator

    data = template.contents(CONFIG, {"cluster": "c", "node": "n"}, "[Unit]\n", reservation)
    shape = model.operation_model("CreateLaunchTemplate").input_shape.members["LaunchTemplateData"]
    report = ParamValidator().validate(data, shape)
    assert not report.has_errors(), report.generate_report()
    options = data["MetadataOptions"]
    assert (options["HttpTokens"], options["InstanceMetadataTags"]) == ("required", "enabled")
    for name in ("HttpTokens", "InstanceMetadataTags", "HttpEndpoint"):
        assert options[name] in member_of(shape, f"MetadataOptions.{name}").enum
    target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    assert target.get("CapacityReservationId") == (reservation.id if reservation else None)
    market = data.get("InstanceMarketOptions", {}).get("MarketType")
    assert (market == "capacity-block") == (reservation is CONFIG.reservations[1])
    assert market is None or market in member_of(shape, "InstanceMarketOptions.MarketType").enum


@pytest.mark.parametrize(
    ("operation", "paths"),
    [
        ("CreateFleet", ["Instances.InstanceIds", "Errors.ErrorCode", "Errors.ErrorMessage"]),
        (
            "DescribeInstances",
            [
                "NextToken",
                "Reservations.Instances.InstanceId",
                "Reservations.Instances.State.Name",
                "Reservations.Instances.Tags.Key",
                "Reservations.Instances.LaunchTime",
                "Reservations.Instances.PrivateIpAddress",
                "Reservations.Instances.InstanceLifecycle",
            ],
        ),
        (
            "DescribeSpotInstanceRequests",
            ["NextToken"] + [f"SpotInstanceRequests.{m}" for m in ("InstanceId", "Status.Code", "Status.UpdateTime")],
        ),
        (
            "DescribeLaunchTemplateVersions",
            ["NextToken", "LaunchTemplateVersions.VersionDescription", "LaunchTemplateVersions.VersionNumber"],
        ),
        ("CreateLaunchTemplateVersion", ["LaunchTemplateVersion.VersionNumber"]),
    ],
)
def test_members_that_are_read_are_in_botocores_model(model: Any, operation: str, paths: list[str]) -> None:
    for path in paths:
        member_of(model.operation_model(operation).output_shape, path)


def test_states_are_all_of_botocores(model: Any) -> None:
    assert set(listing._STATES) == set(model.shape_for("InstanceStateName").enum)


def test_a_fleet_is_as_the_offering_says() -> None:
    spot = asked(offering(zone="any", types="g5.xlarge,g6.xlarge"))
    assert spot["LaunchTemplateConfigs"][0]["Overrides"] == [
        {"InstanceType": t, "SubnetId": s} for t in ("g5.xlarge", "g6.xlarge") for s in ("subnet-a", "subnet-b")
    ]
    assert spot["SpotOptions"]["AllocationStrategy"] == "price-capacity-optimized"
    assert "MinTargetCapacity" not in spot["SpotOptions"]
    whole = {"MinTargetCapacity": 3, "SingleInstanceType": True, "SingleAvailabilityZone": True}
    assert whole.items() <= asked(offering(), whole=True)["SpotOptions"].items()
    assert whole.items() <= asked(offering(Market.ON_DEMAND), whole=True)["OnDemandOptions"].items()
    assert "MinTargetCapacity" not in asked(offering(), 1, whole=True)["SpotOptions"]
    block = asked(offering(Market.RESERVATION, "eu-west-1b", "p5.48xlarge"))
    assert block["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "capacity-block"
    assert not {"SpotOptions", "OnDemandOptions"} & set(block)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", RefusalKind.NO_CAPACITY),
        ("InsufficientHostCapacity", RefusalKind.NO_CAPACITY),
        ("InsufficientReservedInstanceCapacity", RefusalKind.NO_CAPACITY),
        ("InsufficientCapacity", RefusalKind.NO_CAPACITY),
        ("UnfulfillableCapacity", RefusalKind.NO_CAPACITY),
        ("Unsupported", RefusalKind.NO_CAPACITY),
        ("MaxSpotInstanceCountExceeded", RefusalKind.QUOTA),
        ("VcpuLimitExceeded", RefusalKind.QUOTA),
        ("SpotMaxPriceTooLow", RefusalKind.PRICE),
        ("RequestLimitExceeded", RefusalKind.TRY_LATER),
        ("InternalError", RefusalKind.TRY_LATER),
        ("UnauthorizedOperation", RefusalKind.MISTAKE),
        ("InvalidAMIID.NotFound", RefusalKind.MISTAKE),
        ("InvalidAMIID.Malformed", RefusalKind.MISTAKE),
        ("InvalidSubnetID.NotFound", RefusalKind.MISTAKE),
    ],
)
def test_codes_are_sorted(code: str, kind: RefusalKind) -> None:
    refusal = ApiError(code, "words", 400).refuse("id")
    assert (refusal.kind, refusal.code, refusal.text) == (kind, code, "words")


def test_a_quota_of_nothing_is_permanent() -> None:
    words = "You have requested more vCPU capacity than your current vCPU limit of {} allows for the instance bucket."
    assert ApiError("VcpuLimitExceeded", words.format(0)).refuse("id").permanent
    assert not ApiError("VcpuLimitExceeded", words.format(64)).refuse("id").permanent


def test_an_answer_with_nothing_in_it_is_no_capacity() -> None:
    """cases 5: HTTP 200, no instances, no errors."""
    ids, errors = fleet.read({"FleetId": "fleet-1", "Instances": [], "Errors": []})
    assert ids == []
    assert most_telling(errors).kind is RefusalKind.NO_CAPACITY


@given(
    st.permutations(["InsufficientInstanceCapacity", "SpotMaxPriceTooLow", "RequestLimitExceeded", "VcpuLimitExceeded"])
)
def test_of_several_errors_the_most_telling_is_told(codes: list[str]) -> None:
    _, errors = fleet.read({"Errors": [{"ErrorCode": code, "ErrorMessage": "w"} for code in codes]})
    assert most_telling(errors).code == "VcpuLimitExceeded"
    assert most_telling([e for e in errors if e.code != "VcpuLimitExceeded"]).code == "RequestLimitExceeded"


# --- names ------------------------------------------------------------------------------------------------------------

HOSTS = st.lists(
    st.one_of(
        st.from_regex(r"[a-z]{1,5}-[0-9]{1,4}", fullmatch=True), st.from_regex(r"r[0-9]n0[0-9]{2}", fullmatch=True)
    ),
    min_size=1,
    max_size=14,
    unique=True,
)


def load_name_node() -> Any:
    import importlib.util

    path = render.template_folder() / "name-node.py"
    spec = importlib.util.spec_from_file_location("name_node", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAME_NODE = load_name_node()


@settings(max_examples=60)
@given(HOSTS, st.data())
def test_the_listing_and_the_node_read_the_same_names(nodes: list[str], data: st.DataObject) -> None:
    """Whatever the nodes, whichever of the batch are in the fleet, and also when some got no machine."""
    ids = launch_ids.batch(len(nodes) + 5)
    picked = sorted(data.draw(st.lists(st.sampled_from(ids), min_size=len(nodes), max_size=len(nodes), unique=True)))
    members = list(zip(picked, nodes, strict=True))
    instances = {m: f"i-{n:017x}" for n, m in enumerate(picked) if n == 0 or data.draw(st.booleans())}
    common = names.fleet_tags({tags.CLUSTER: "c"}, ids[0], "token", members)
    assert all(len(v) <= 256 for v in common.values())
    told = {i: dict(common) for i in instances.values()}
    for some, given_ in names.place_tags(members, instances):
        assert len(some) <= 1000
        for instance_id in some:
            told[instance_id] |= given_
    for launch_id, node in members:
        if launch_id in instances:
            found = told[instances[launch_id]]
            assert names.read(found) == (launch_id, node)
            assert NAME_NODE.node_of(found) == node
            if len(members) > 1:
                half = {k: v for k, v in found.items() if k not in (tags.NODE, tags.LAUNCH, f"{names.DIGIT}0")}
                assert names.read(half) is None
                assert NAME_NODE.node_of(half) is None


@settings(max_examples=40)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=30, unique=True))
def test_hostlists_are_expanded_as_slurm_does(numbers: list[int]) -> None:
    from slurm_plugin.slurm.hostlist import fold

    for nodes in ([f"a-{n}" for n in numbers], [f"r{n % 3}n{n:03d}x" for n in numbers], ["plain", "other-7"]):
        text = fold(nodes)
        assert sorted(NAME_NODE.expand(text)) == sorted(expand(text))
        assert names.in_order(text) == NAME_NODE.expand(text)


def test_five_hundred_machines_are_named_in_thirty_calls() -> None:
    members = [(i, f"gpu-{n}") for n, i in enumerate(launch_ids.batch(500), 1)]
    calls = names.place_tags(members, {m: f"i-{n:017x}" for n, (m, _) in enumerate(members)})
    assert len(calls) <= 30
    assert names.fleet_tags({}, members[0][0], "t", members)[f"{names.NODES}0"] == "gpu-[1-500]"


class Imds:
    """A metadata service that serves tags: the last digit appears after some questions."""

    def __init__(self, tags_: dict[str, str], late: int) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        outer = self
        self.left = late

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._say("token")

            def do_GET(self) -> None:
                path = self.path.removeprefix("/latest/meta-data/tags/instance").strip("/")
                if self.headers.get("X-aws-ec2-metadata-token") != "token":
                    self.send_error(401)
                elif path:
                    self._say(tags_[path])
                else:
                    outer.left -= 1
                    hidden = outer.left >= 0
                    self._say("\n".join(k for k in tags_ if not (hidden and k == "spotburst-digit-0")))

            def _say(self, text: str) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        import threading

        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def run_name_node(
    tmp_path: Path, user_data: dict[str, Any], endpoint: str, patience: str
) -> subprocess.CompletedProcess[str]:
    files = {f["path"]: f for f in user_data["write_files"]}
    for name in ("node.json", "name-node"):
        content = base64.b64decode(files[f"/usr/local/lib/spotburst/{name}"]["content"])
        (tmp_path / name).write_bytes(content)
    return subprocess.run(
        [sys.executable, str(tmp_path / "name-node"), str(tmp_path / "node.json"), str(tmp_path / "out.json")],
        env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint, "SPOTBURST_NAME_PATIENCE": patience},
        capture_output=True,
        text=True,
        check=False,
    )


def user_data_of(data: dict[str, Any]) -> dict[str, Any]:
    text = base64.b64decode(data["UserData"]).decode()
    assert text.startswith("#cloud-config\n")
    return dict(yaml.safe_load(text))


def test_a_node_learns_its_name_at_boot(tmp_path: Path) -> None:
    """The script that user data carries, run against a metadata service whose tags come late."""
    config = {
        "cluster": "c",
        "node": "whoever",
        "offering": "x",
        "nodeset": "spot",
        "uri": "s3://b/p",
        "interval": 60.0,
    }
    user_data = user_data_of(template.contents(CONFIG, config, "[Unit]\n", None))
    boot = next(f for f in user_data["write_files"] if f["path"].endswith("first-boot"))
    assert user_data["runcmd"] == [["/usr/local/lib/spotburst/first-boot"]]
    assert boot["content"].rstrip().endswith("systemctl restart slurmd.service")
    subprocess.run(["sh", "-n"], input=boot["content"], text=True, check=True)
    members = list(zip(launch_ids.batch(12), [f"gpu-{n}" for n in range(1, 13)], strict=True))
    found = names.fleet_tags({tags.OFFERING: "ec2/r/z/t/spot", "Name": "c spot"}, members[0][0], "t", members)
    found |= {"spotburst-digit-1": "1", "spotburst-digit-0": "1"}
    with Imds(found, late=1) as endpoint:
        done = run_name_node(tmp_path, user_data, endpoint, "30")
    assert (done.returncode, done.stdout) == (0, "gpu-12\n"), done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert told == {**config, "node": "gpu-12", "offering": "ec2/r/z/t/spot"}


def test_a_node_without_a_name_starts_nothing(tmp_path: Path) -> None:
    user_data = user_data_of(template.contents(CONFIG, {"cluster": "c"}, "[Unit]\n", None))
    with Imds({"spotburst-digits": "1"}, late=0) as endpoint:
        done = run_name_node(tmp_path, user_data, endpoint, "0")
    assert done.returncode == 1
    assert done.stderr.startswith("spotburst: this machine's node is unknown: the tags do not tell yet")
    assert not (tmp_path / "out.json").exists()


# --- on moto ----------------------------------------------------------------------------------------------------------


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
    ec2.server.faults.errors += [("CreateTags", 500, "InternalError", "x")]
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
    """cases 14."""
    record = {"InstanceId": "i-1", "State": {"Name": "stopped"}, "InstanceLifecycle": "spot", "Tags": []}
    machine = listing.read(record).machine
    assert machine.state is InstanceState.GONE
    assert machine.billed
