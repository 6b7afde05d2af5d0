"""How many vCPUs the account may have at a time, by Service Quotas, and how many are in use.

Source: Amazon EC2 Instance Types guide, "Amazon EC2 instance type quotas"; Service Quotas API Reference, GetServiceQuota.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slurm_plugin.cloud.asking import asking
from slurm_plugin.cloud.aws.client import Ec2, Service
from slurm_plugin.cloud.aws.errors import ApiError
from slurm_plugin.cloud.aws.fleet import instance_types
from slurm_plugin.cloud.aws.sizes import describe
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.quotas import Quota, Take, Ways

_STANDARD = ("L-1216C47A", "L-34B43A08")
_G = ("L-DB2E81BA", "L-3819A6DF")
_CODES: Mapping[str, tuple[str, str]] = {
    "dl": ("L-6E869C2A", "L-85EED4F7"),
    "f": ("L-74FC7D96", "L-88CF9481"),
    "g": _G,
    "gr": _G,
    "vt": _G,
    "hpc": ("L-F7808C92", ""),
    "inf": ("L-1945791B", "L-B5D1601B"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "trn": ("L-2C3B7624", "L-6B0D517C"),
    "u": ("L-43DA4232", ""),
    "x": ("L-7295265B", "L-E3A00192"),
}
"""By the letters that a type begins with: the quota's code on demand, and as spot. The standard families go by their first letter."""
_SPOT_P5 = "L-C4BD4855"


def code(instance_type: str, market: Market) -> str:
    """The code of the quota that counts a type's vCPUs; "" where it is not known which one does. Pure."""
    found = re.match(r"([a-z]+)-?(\d*)", instance_type)
    letters, generation = (found[1], found[2]) if found else ("", "")
    if letters == "p" and market is Market.SPOT and generation not in ("2", "3", "4"):
        return _SPOT_P5 if generation == "5" else ""
    on_demand, spot = _CODES.get(letters) or (
        _STANDARD if letters != "mac" and letters[:1] in tuple("acdhimrtz") else ("", "")
    )
    return spot if market is Market.SPOT else on_demand


def quotas(provider: str, ec2: Ec2, offerings: Collection[Offering]) -> dict[str, Ways]:
    """See ``TellsQuotas``. What a reservation holds was counted when it was made."""
    types = {offering.id: instance_types(offering) for offering in offerings}
    with asking(provider, "ec2:DescribeInstanceTypes"):
        cpus = {
            name: _cpus(record) for name, record in describe(ec2, {n for some in types.values() for n in some}).items()
        }
    found: dict[str, Ways] = {o.id: () for o in offerings if o.market is Market.RESERVATION}
    bought = [offering for offering in offerings if offering.id not in found]
    wanted = {code(name, o.market) for o in bought for name in types[o.id] if name in cpus} - {""}
    used = _used(ec2) if wanted else None
    service = Service(ec2.config, "service-quotas")
    known: dict[str, Quota] = {}
    for one in sorted(wanted):
        with asking(provider, "servicequotas:GetServiceQuota"):
            try:
                told = service.call("get_service_quota", ServiceCode="ec2", QuotaCode=one).get("Quota") or {}
            except ApiError as error:
                if error.code != "NoSuchResourceException":
                    raise
                continue
        if isinstance(told.get("Value"), int | float):
            known[one] = _quota(told, one, ec2.config.region, used)
    for offering in bought:
        takes = [
            Take(known[one], cpus[name])
            for name in types[offering.id]
            if name in cpus and (one := code(name, offering.market)) in known
        ]
        if takes:
            found[offering.id] = tuple((take,) for take in takes)
    return found


def _quota(told: Mapping[str, Any], code: str, region: str, used: Mapping[str, float] | None) -> Quota:
    return Quota(
        name=f"{told.get('QuotaName') or 'the quota'} ({code})",
        place=region,
        limit=float(told["Value"]),
        used=used.get(code, 0.0) if used is not None else None,
        unit="vCPUs",
        more=f"`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} --region {region} --desired-value …`",
    )


def _cpus(record: Mapping[str, Any]) -> float:
    return float(record["VCpuInfo"]["DefaultVCpus"])


def _used(ec2: Ec2) -> dict[str, float] | None:
    """vCPUs in use in the region by quota code, whoever uses them; None where EC2 does not tell."""
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    try:
        running = Counter(_bought(ec2.pages("describe_instances", "Reservations", Filters=alive, MaxResults=1000)))
        cpus = {name: _cpus(record) for name, record in describe(ec2, {name for name, _ in running}).items()}
    except ApiError:
        return None
    used: dict[str, float] = {}
    for (name, market), count in running.items():
        one = code(name, market)
        used[one] = used.get(one, 0.0) + count * cpus.get(name, 0.0)
    return used


def _bought(reservations: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, Market]]:
    for reservation in reservations:
        for instance in reservation.get("Instances") or ():
            how = instance.get("InstanceLifecycle")
            if how in (None, "", "spot"):
                yield str(instance.get("InstanceType")), Market.SPOT if how == "spot" else Market.ON_DEMAND
