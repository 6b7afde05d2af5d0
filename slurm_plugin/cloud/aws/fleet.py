"""CreateFleet's request and answer, as values. Nothing is sent here.

Source: Amazon EC2 API Reference, CreateFleet; EC2 User Guide, "Use an EC2 Fleet of type instant" and "Capacity Blocks".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_plugin.cloud.aws.errors import ApiError
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.config import AwsProvider
from slurm_plugin.config_providers import ANY_ZONE
from slurm_plugin.errors import ConfigError

_CAPACITY = {Market.SPOT: "spot", Market.ON_DEMAND: "on-demand", Market.RESERVATION: "on-demand"}

_NOT_NITRO = re.compile(r"(c1|c3|c4|cc2|d2|f1|g2|g3|g3s|h1|i2|i3|m1|m2|m3|m4|p2|p3|r3|r4|t1|t2|x1|x1e)\.")
"""Source: EC2 User Guide, "Instances built on the AWS Nitro System". Their metadata shows tags as they were at the start."""


def hears_tags(offering: Offering) -> bool:
    """Whether a running machine sees, in its metadata, tags that came after its launch."""
    return not any(_NOT_NITRO.match(name) for name in instance_types(offering))


def instance_types(offering: Offering) -> list[str]:
    """``g5.xlarge,g6.xlarge`` names alternatives of the same shape; EC2 chooses by price and capacity."""
    return [name for name in (part.strip() for part in offering.instance_type.split(",")) if name]


def subnets(config: AwsProvider, offering: Offering) -> list[str]:
    """Of the offering's zone, or of all zones. Raises ``ConfigError``."""
    if offering.zone in ANY_ZONE:
        return list(config.subnets.values())
    if offering.zone not in config.subnets:
        raise ConfigError(f"providers: {offering.id}: zone {offering.zone} has no subnet")
    return [config.subnets[offering.zone]]


def request(
    config: AwsProvider,
    offering: Offering,
    template: tuple[str, str],
    tags: Mapping[str, str],
    *,
    token: str,
    count: int,
    all_or_nothing: bool,
) -> dict[str, Any]:
    """The call's members. ``template``: name and version. Raises ``ConfigError``."""
    whole = {"MinTargetCapacity": count, "SingleInstanceType": True, "SingleAvailabilityZone": True}
    options: dict[str, Any] = whole if all_or_nothing and count > 1 else {}
    reservation = config.reservation(offering.instance_type, offering.zone)
    block = offering.market is Market.RESERVATION and reservation is not None and reservation.kind == "capacity-block"
    members: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template[0], "Version": template[1]},
                "Overrides": [
                    {"InstanceType": name, "SubnetId": subnet}
                    for name in instance_types(offering)
                    for subnet in subnets(config, offering)
                ],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": count,
            "DefaultTargetCapacityType": "capacity-block" if block else _CAPACITY[offering.market],
        },
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in sorted(tags.items())]}
        ],
    }
    if offering.market is Market.SPOT:
        members["SpotOptions"] = {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
            **options,
        }
    elif not block:
        members["OnDemandOptions"] = {"AllocationStrategy": "lowest-price", **options}
    return members


def read(answer: Mapping[str, Any]) -> tuple[list[str], list[ApiError]]:
    """Instance ids and errors. HTTP 200 with neither is an answer too."""
    ids = [i for group in answer.get("Instances") or () for i in group.get("InstanceIds") or ()]
    errors = [
        ApiError(str(e.get("ErrorCode") or "Unknown"), str(e.get("ErrorMessage") or ""))
        for e in answer.get("Errors") or ()
    ]
    return ids, errors
