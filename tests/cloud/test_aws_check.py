"""Images and quotas of an AWS account, by boto3's own client: EC2 is moto's, Service Quotas and parameters are ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from slurm_plugin.checks.finding import State
from slurm_plugin.cloud.aws.quotas import code
from slurm_plugin.cloud.provider import Market
from tests.cloud.checking import assert_not_permitted, assert_well, found, of, states
from tests.fixtures.moto_account import Account
from tests.fixtures.moto_server import REGION

SPOT_G, ON_DEMAND_G = "L-3819A6DF", "L-DB2E81BA"
G5 = {"instance_type": "g5.xlarge"}  # 4 vCPUs, x86_64
ON_DEMAND = {**G5, "market": "on-demand"}


@pytest.fixture(scope="module")
def served() -> Iterator[Account]:
    with Account() as account:
        yield account


@pytest.fixture(scope="module")
def session() -> boto3.Session:
    """For all tests: reading what EC2's API looks like takes a second."""
    return boto3.Session("testing", "testing", region_name=REGION)


@pytest.fixture
def account(served: Account, session: boto3.Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setattr("slurm_plugin.cloud.aws.client.make_session", lambda _: session)
    served.limits = {SPOT_G: ("All G and VT Spot Instance Requests", 64.0), ON_DEMAND_G: ("Running G", 64.0)}
    served.denied, served.parameters = set(), {}
    yield served
    served.restore()


def provider(account: Account, image: str = "", **more: Any) -> dict[str, Any]:
    ami = next(
        i for i, ami in account.backend.amis.items() if ami.architecture == "x86_64" and ami.state == "available"
    )
    subnets = {f"{REGION}a": account.subnet(f"{REGION}a")}
    base = {"type": "aws", "region": REGION, "endpoint_url": account.endpoint, "subnets": subnets}
    return {**base, "image": image or ami, **more}


def ami(account: Account, **changes: Any) -> str:
    """One of moto's images, changed until the end of the test."""
    name = str(provider(account)["image"])
    account.change(name, **changes)
    return name


def test_an_image_that_is_there_and_quotas_that_are_enough(account: Account, tmp_path: Path) -> None:
    findings = found(tmp_path, provider(account), G5, ON_DEMAND)
    assert_well(findings)
    assert "x86_64" in of(findings, "images")[1]


def test_images_that_no_machine_can_boot_from(account: Account, tmp_path: Path) -> None:
    state, detail, fix = of(found(tmp_path, provider(account, "ami-0123456789abcdef0"), G5), "images")
    assert (state, "copy-image" in fix) == (State.FAULT, True)
    assert f"providers.cloud.image: ami-0123456789abcdef0 is not in {REGION}" in detail
    state, detail, fix = of(found(tmp_path, provider(account, ami(account, state="pending")), G5), "images")
    assert (state, "state pending" in detail, fix) == (State.FAULT, True, "wait until it is available")
    state, detail, fix = of(found(tmp_path, provider(account, ami(account, architecture="arm64")), G5), "images")
    assert (state, "arm64, instance_type g5.xlarge runs x86_64" in detail) == (State.FAULT, True)
    assert "an image of architecture x86_64" in fix


def test_an_image_that_is_deprecated_is_a_note(account: Account, tmp_path: Path) -> None:
    for when, told in (("2020-01-01T00:00:00.000Z", [State.OK, State.NOTE]), ("2999-01-01T00:00:00.000Z", [State.OK])):
        named = provider(account, ami(account, deprecation_time=when))
        assert states(found(tmp_path, named, G5), "images") == told


def test_a_parameter_that_names_the_image(account: Account, tmp_path: Path) -> None:
    named = provider(account, "resolve:ssm:/slurm/image")
    state, detail, fix = of(found(tmp_path, named, G5), "images")
    assert (state, "a parameter that is not in" in detail, "put-parameter" in fix) == (State.FAULT, True, True)
    image = ami(account)
    account.parameters["/slurm/image"] = image
    state, detail, _ = of(found(tmp_path, named, G5), "images")
    assert (state, f"resolve:ssm:/slurm/image ({image})" in detail) == (State.OK, True)
    account.parameters["/slurm/image"] = "none"
    assert "holds 'none', no AMI" in of(found(tmp_path, named, G5), "images")[1]


def test_a_quota_below_one_machine_and_one_below_all(account: Account, session: boto3.Session, tmp_path: Path) -> None:
    account.limits = {SPOT_G: ("All G and VT Spot Instance Requests", 8.0), ON_DEMAND_G: ("Running On-Demand G", 0.0)}
    session.client("ec2", endpoint_url=account.endpoint).run_instances(
        ImageId=provider(account)["image"], InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1
    )
    findings = found(tmp_path, provider(account), G5, ON_DEMAND)
    spot, on_demand = (one for one in findings if one.what == "quotas")
    assert (spot.state, on_demand.state) == (State.NOTE, State.FAULT)
    assert f"All G and VT Spot Instance Requests ({SPOT_G}) in {REGION} is 8 vCPUs (0 in use now)" in spot.detail
    assert "a machine takes 4: 2 of 4 nodes fit" in spot.detail
    assert "is 0 vCPUs (4 in use now), and a machine takes 4: none can ever start" in on_demand.detail
    assert f"--quota-code {ON_DEMAND_G} --region {REGION}" in on_demand.fix
    assert "16 are enough for all 4 nodes" in on_demand.fix


def test_alternatives_need_one_quota_that_is_enough(account: Account, tmp_path: Path) -> None:
    account.limits["L-7212CCBC"] = ("All P4, P3 and P2 Spot Instance Requests", 0.0)
    both = {"instance_type": "p4d.24xlarge,g5.xlarge"}
    assert states(found(tmp_path, provider(account), both), "quotas") == [State.OK]
    assert states(found(tmp_path, provider(account), {"instance_type": "p4d.24xlarge"}), "quotas") == [State.FAULT]


def test_nodesets_that_share_a_quota(account: Account, tmp_path: Path) -> None:
    account.limits[SPOT_G] = ("All G", 20.0)
    assert states(found(tmp_path, provider(account), G5, nodesets=2), "quotas") == [State.OK, State.NOTE]
    assert states(found(tmp_path, provider(account), G5), "quotas") == [State.OK]


@pytest.mark.parametrize(
    ("operation", "permission", "what", "image"),
    [
        ("DescribeImages", "ec2:DescribeImages", "images", ""),
        ("GetServiceQuota", "servicequotas:GetServiceQuota", "quotas", ""),
        ("GetParameters", "ssm:GetParameters", "images", "resolve:ssm:/x"),
    ],
)
def test_what_may_not_be_asked_is_named(
    account: Account, tmp_path: Path, operation: str, permission: str, what: str, image: str
) -> None:
    account.denied = {operation}
    assert_not_permitted(of(found(tmp_path, provider(account, image), G5), what), permission)


def test_use_that_is_not_told_is_left_out_and_a_quota_that_is_not_there_is_unknown(
    account: Account, tmp_path: Path
) -> None:
    account.denied = {"DescribeInstances"}
    account.limits = {SPOT_G: ("All G", 4.0)}
    note, unknown = sorted(
        (one for one in found(tmp_path, provider(account), G5, ON_DEMAND) if one.what == "quotas"),
        key=lambda one: one.state.value,
    )
    assert "is 4 vCPUs, and" in note.detail
    assert (unknown.state, "g5.xlarge/on-demand is not known" in unknown.detail) == (State.UNKNOWN, True)


def test_families_and_their_quotas() -> None:
    for name, spot, on_demand in (
        ("m7i.large", "L-34B43A08", "L-1216C47A"),
        ("im4gn.large", "L-34B43A08", "L-1216C47A"),
        ("gr6.4xlarge", SPOT_G, ON_DEMAND_G),
        ("vt1.3xlarge", SPOT_G, ON_DEMAND_G),
        ("inf2.xlarge", "L-B5D1601B", "L-1945791B"),
        ("dl1.24xlarge", "L-85EED4F7", "L-6E869C2A"),
        ("d3en.xlarge", "L-34B43A08", "L-1216C47A"),
        ("trn1n.32xlarge", "L-6B0D517C", "L-2C3B7624"),
        ("t3.micro", "L-34B43A08", "L-1216C47A"),
        ("p4d.24xlarge", "L-7212CCBC", "L-417A185B"),
        ("p5en.48xlarge", "L-C4BD4855", "L-417A185B"),
        ("p6-b200.48xlarge", "", "L-417A185B"),
        ("u-6tb1.112xlarge", "", "L-43DA4232"),
        ("mac2.metal", "", ""),
        ("9x.large", "", ""),
    ):
        assert (code(name, Market.SPOT), code(name, Market.ON_DEMAND)) == (spot, on_demand), name


def test_a_type_that_is_described_by_half_tells_nothing(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = account.backend.describe_instance_types(filters={"instance-type": ["g5.xlarge"]})
    monkeypatch.delitem(known[0], "VCpuInfo")
    findings = found(tmp_path, provider(account), G5)
    for what in ("instance types", "quotas"):
        assert "an answer can't be read: KeyError: 'VCpuInfo'" in "".join(f.detail for f in findings if f.what == what)
        assert State.UNKNOWN in states(findings, what)
