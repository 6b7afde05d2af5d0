"""The AMI that burst.yaml names, as EC2 shows it.

Source: Amazon EC2 API Reference, DescribeImages and "Error codes"; EC2 User Guide, "Use a Systems Manager parameter to reference an AMI".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from slurm_plugin.cloud.asking import asking
from slurm_plugin.cloud.aws.client import Ec2, Service
from slurm_plugin.cloud.aws.errors import ApiError
from slurm_plugin.cloud.aws.fleet import instance_types
from slurm_plugin.cloud.aws.sizes import describe
from slurm_plugin.cloud.images import ImageFacts
from slurm_plugin.cloud.instants import unix_seconds
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.config import AwsProvider

PARAMETER = "resolve:ssm:"
_NONE = ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable")


def image(provider: str, ec2: Ec2, now: float) -> ImageFacts:
    """See ``DescribesImages``. ``now``: Unix seconds."""
    config = ec2.config
    name, ami = config.image, config.image
    if name.startswith(PARAMETER):
        ami = _parameter(provider, config, name.removeprefix(PARAMETER))
        if not ami.startswith("ami-"):
            why = (
                f"names a parameter that holds {ami!r}, no AMI"
                if ami
                else f"names a parameter that is not in {config.region}"
            )
            put = f"`aws ssm put-parameter --region {config.region} --type String --overwrite --name … --value ami-…`"
            return ImageFacts(name, missing=why, fix=put)
        name = f"{name} ({ami})"
    with asking(provider, "ec2:DescribeImages"):
        try:
            answer = ec2.read("describe_images", ImageIds=[ami], IncludeDeprecated=True, IncludeDisabled=True)
        except ApiError as error:
            if error.code not in _NONE:
                raise
            answer = {}
    found = answer.get("Images") or []
    return read(name, found[0] if found else None, config.region, now)


def read(name: str, record: Mapping[str, Any] | None, region: str, now: float) -> ImageFacts:
    """What an answer of DescribeImages says. ``now``: Unix seconds. Pure."""
    if record is None:
        return ImageFacts(
            name,
            missing=f"is not in {region}, or this account may not use it: no machine can start",
            fix=f"name an AMI of {region} in burst.yaml (`aws ec2 copy-image` brings one from another region), or have its owner share it with this account",
        )
    state = str(record.get("State") or "")
    if state != "available":
        wait = (
            "wait until it is available"
            if state == "pending"
            else "name another one in burst.yaml, or make it anew (docs/images.md)"
        )
        return ImageFacts(
            name, missing=f"is in state {state or 'unknown'}, not available: no machine can start", fix=wait
        )
    until = str(record.get("DeprecationTime") or "")
    over = unix_seconds(until)
    return ImageFacts(
        name,
        withdrawn=f"is deprecated since {until}" if over is not None and over <= now else "",
        architecture=str(record.get("Architecture") or ""),
    )


def architectures(provider: str, ec2: Ec2, offerings: Collection[Offering]) -> dict[str, dict[str, frozenset[str]]]:
    """See ``DescribesImages``."""
    types = {offering.id: instance_types(offering) for offering in offerings}
    with asking(provider, "ec2:DescribeInstanceTypes"):
        known = describe(ec2, {name for some in types.values() for name in some})
    runs = {n: frozenset((r.get("ProcessorInfo") or {}).get("SupportedArchitectures") or ()) for n, r in known.items()}
    return {id_: {name: runs[name] for name in some if name in runs} for id_, some in types.items()}


def _parameter(provider: str, config: AwsProvider, path: str) -> str:
    """Its value; "" where there is none of that name."""
    service = Service(config, "ssm")
    with asking(provider, "ssm:GetParameters"):
        told = service.call("get_parameters", Names=[path]).get("Parameters") or []
    return str(told[0].get("Value") or "") if told else ""
