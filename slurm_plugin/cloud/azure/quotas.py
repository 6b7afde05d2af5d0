"""What of a subscription's quotas in a region counts a machine. Pure.

Source: Azure REST API, Microsoft.Compute, "Usage - List"; Azure documentation, "Check vCPU quotas" and "Spot quota": spot machines of all
families are counted together, others by region and by family.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slurm_plugin.cloud.azure import catalog
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.quotas import Quota, Take, Ways

_SPOT, _REGION = "lowPriorityCores", "cores"


def ways(
    usages: Iterable[Mapping[str, Any]],
    place: str,
    skus: Mapping[str, Mapping[str, Any]],
    offerings: Collection[Offering],
) -> dict[str, Ways]:
    """See ``TellsQuotas``. ``usages``: as Azure lists them; ``skus``: by offering id."""
    known = {plain: quota for usage in usages for plain, quota in _read(usage, place)}
    found: dict[str, Ways] = {}
    for offering in offerings:
        sku = skus.get(offering.id)
        size = catalog.read(sku) if sku is not None else None
        if sku is None or size is None or size.cpus < 1:
            continue
        names = [_SPOT] if offering.market is Market.SPOT else [_REGION, str(sku.get("family") or "")]
        plain = [_plain(name) for name in names]
        if all(name in known for name in plain):
            # A limit below 0 is none.
            takes = tuple(Take(known[name], size.cpus) for name in plain if known[name].limit >= 0)
            found[offering.id] = (takes,) if takes else ()
    return found


def _read(usage: Mapping[str, Any], place: str) -> Iterable[tuple[str, Quota]]:
    name = usage.get("name")
    try:
        limit, used = float(usage["limit"]), float(usage["currentValue"])
    except (KeyError, TypeError, ValueError):
        return
    if isinstance(name, dict) and name.get("value"):
        value = str(name["value"])
        shown = f"{name['localizedValue']} ({value})" if name.get("localizedValue") else value
        more = f"ask for more of {value} in {place} (Azure portal, Quotas, Compute)"
        yield _plain(value), Quota(shown, place, limit, used, "vCPUs", more)


def _plain(name: str) -> str:
    """Sizes and usages write the same family with other capitals and spaces."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
