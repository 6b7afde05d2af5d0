"""Spot prices as EC2 tells them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timezone

from slurm_plugin.cloud.aws.client import Ec2
from slurm_plugin.cloud.aws.fleet import instance_types
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.config_providers import ANY_ZONE

PRODUCT = "Linux/UNIX"
TYPES_A_CALL = 50


def spot_prices(ec2: Ec2, offerings: Collection[Offering], zones: Collection[str]) -> dict[str, float]:
    """US dollars an hour by offering id; of several types or zones (``zones`` where it is any), the cheapest. Raises ``ApiError``."""
    types = sorted({name for offering in offerings for name in instance_types(offering)})
    newest: dict[tuple[str, str], float] = {}
    for start in range(0, len(types), TYPES_A_CALL):
        # From now on: EC2 then gives the price that holds now, one a type and zone.
        for record in ec2.pages(
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=types[start : start + TYPES_A_CALL],
            ProductDescriptions=[PRODUCT],
            StartTime=datetime.now(timezone.utc),
        ):
            newest.setdefault((record["InstanceType"], record["AvailabilityZone"]), float(record["SpotPrice"]))
    found = {offering.id: _of(offering, newest, zones) for offering in offerings}
    return {id_: price for id_, price in found.items() if price is not None}


def _of(offering: Offering, newest: Mapping[tuple[str, str], float], zones: Collection[str]) -> float | None:
    where = zones if offering.zone in ANY_ZONE else [offering.zone]
    found = (newest.get((name, zone)) for name in instance_types(offering) for zone in where)
    return min((price for price in found if price is not None), default=None)
