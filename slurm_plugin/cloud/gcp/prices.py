"""What Compute Engine's machines cost, by the catalog of Cloud Billing: so much a core, a GiB and a GPU.

Source: Cloud Billing API v1, ``services.skus.list``; Compute Engine documentation, "SKU groups". A SKU names no machine type, only, in its
description, the series (``Spot Preemptible G2 Instance Core running in Americas``). What stands in no table here, custom types among it, has no
price: a machine of which one part is unknown is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests

from slurm_plugin.cloud.price_lists import MOST_PAGES, is_price, page, records
from slurm_plugin.cloud.provider import Market
from slurm_plugin.errors import CloudUnavailable

CATALOG = "https://cloudbilling.googleapis.com"
COMPUTE_ENGINE = "services/6F81-5844-456A"
_MARKETS = {"OnDemand": Market.ON_DEMAND, "Preemptible": Market.SPOT}
_UNITS = {"h", "GiBy.h"}
_SERIES = {
    "a2": "a2 instance",
    "a3": "a3 instance",
    "a3-megagpu": "a3plus instance",
    "c2": "compute optimized",
    "c2d": "c2d amd instance",
    "c3": "c3 instance",
    "c3d": "c3d instance",
    "c4": "c4 instance",
    "e2": "e2 instance",
    "g2": "g2 instance",
    "m1": "memory-optimized instance",
    "m3": "m3 memory-optimized instance",
    "n1": "n1 predefined instance",
    "n2": "n2 instance",
    "n2d": "n2d amd instance",
    "n4": "n4 instance",
    "t2a": "t2a arm instance",
    "t2d": "t2d amd instance",
}
_GPUS = {
    "nvidia-a100-80gb": "nvidia tesla a100 80gb gpu",
    "nvidia-h100-80gb": "nvidia h100 80gb gpu",
    "nvidia-h100-mega-80gb": "nvidia h100 80gb mega gpu",
    "nvidia-l4": "nvidia l4 gpu",
    "nvidia-tesla-a100": "nvidia tesla a100 gpu",
    "nvidia-tesla-p100": "nvidia tesla p100 gpu",
    "nvidia-tesla-p4": "nvidia tesla p4 gpu",
    "nvidia-tesla-t4": "nvidia tesla t4 gpu",
    "nvidia-tesla-v100": "nvidia tesla v100 gpu",
}
Prices = Mapping[tuple[Market, str], float]
"""By market and the SKU's description without its market and place, lower case: US dollars an hour of one of it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a machine type is made of. ``gpus``: type as Compute Engine names it, and how many. ``architecture``: X86_64, ARM64, "" where not told."""

    cpus: int
    memory_mb: int
    gpus: tuple[tuple[str, int], ...] = ()
    architecture: str = ""


def skus(session: requests.Session, base: str) -> Iterator[dict[str, Any]]:
    """All of Compute Engine's. Raises ``CloudUnavailable``, maybe in the middle of it: use nothing of what came before."""
    token = ""
    for _ in range(MOST_PAGES):
        asked = {"currencyCode": "USD", "pageSize": "5000", **({"pageToken": token} if token else {})}
        answer = page(session, f"{base}/v1/{COMPUTE_ENGINE}/skus", asked)
        yield from records(answer, "skus", base)
        token = str(answer.get("nextPageToken") or "")
        if not token:
            return
    raise CloudUnavailable(f"{base}: the catalog has more than {MOST_PAGES} pages")


def read(catalog: Iterable[Mapping[str, Any]], region: str) -> dict[tuple[Market, str], float]:
    """What of a catalog is about machines of the region; see ``Prices``."""
    found: dict[tuple[Market, str], float] = {}
    for sku in catalog:
        category, regions = sku.get("category"), sku.get("serviceRegions")
        if not isinstance(category, dict) or not isinstance(regions, list):
            continue
        market = _MARKETS.get(str(category.get("usageType")))
        if market is None or category.get("resourceFamily") != "Compute" or region not in regions:
            continue
        price = _price(sku)
        what = str(sku.get("description") or "").lower().partition(" running in ")[0]
        spot = what.removeprefix("spot preemptible ").removesuffix(" attached to spot preemptible vms")
        if (spot != what) == (market is Market.SPOT) and price is not None:
            found[market, spot] = price
    return found


def price(instance_type: str, parts: Parts, market: Market, prices: Prices) -> float | None:
    """US dollars an hour of one machine; None where a part of it has no known price."""
    series = _series(instance_type)
    named = [(f"{series} core", float(parts.cpus)), (f"{series} ram", parts.memory_mb / 1024.0)]
    named += [(_GPUS.get(kind, ""), float(count)) for kind, count in parts.gpus]
    total = 0.0
    for name, count in named:
        each = prices.get((market, name))
        if each is None:
            return None
        total += each * count
    return total


def _series(instance_type: str) -> str:
    words = instance_type.split("-")
    if "custom" in words:
        return ""
    return _SERIES.get("-".join(words[:2])) or _SERIES.get(words[0], "")


def _price(sku: Mapping[str, Any]) -> float | None:
    try:
        told = sku["pricingInfo"][-1]["pricingExpression"]
        rate = told["tieredRates"][-1]["unitPrice"]
        if told["usageUnit"] not in _UNITS or rate.get("currencyCode") != "USD":
            return None
        price = int(rate.get("units") or 0) + int(rate.get("nanos") or 0) / 1e9
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    return price if is_price(price) else None
