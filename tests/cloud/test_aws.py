"""aws: what is asked of EC2, and how its answers are read. The contract is in test_contract_aws.py."""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.cloud.aws import fleet, listing, template
from slurm_plugin.cloud.aws.errors import ApiError, most_telling
from slurm_plugin.cloud.provider import Market, Offering, RefusalKind
from tests.cloud.aws_example import CONFIG


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
    """docs/cases.md, 5: HTTP 200, no instances, no errors."""
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
