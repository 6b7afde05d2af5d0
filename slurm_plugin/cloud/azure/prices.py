"""What Azure's virtual machines cost, by the Retail Prices API, which needs no credentials.

Source: Azure documentation, "Azure Retail Prices overview". One size has several meters: Windows, spot, low priority (the old kind of spot, of
Batch alone), and commitments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import requests

from slurm_plugin.cloud.price_lists import MOST_PAGES, is_price, page, records
from slurm_plugin.cloud.provider import Market
from slurm_plugin.errors import CloudUnavailable

RETAIL = "https://prices.azure.com"
PATH = "/api/retail/prices"
TYPES_A_CALL = 10


def meters(session: requests.Session, base: str, region: str, types: Collection[str]) -> Iterator[dict[str, Any]]:
    """Of these sizes. Raises ``CloudUnavailable``, maybe in the middle of it: use nothing of what came before."""
    listed = sorted(types)
    for start in range(0, len(listed), TYPES_A_CALL):
        sizes = " or ".join(f"armSkuName eq '{_quoted(name)}'" for name in listed[start : start + TYPES_A_CALL])
        asked = {
            "api-version": "2023-01-01-preview",
            "$filter": f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{_quoted(region)}' and ({sizes})",
        }
        url, params = base + PATH, asked
        for _ in range(MOST_PAGES):
            answer = page(session, url, params)
            yield from records(answer, "Items", base)
            url, params = str(answer.get("NextPageLink") or ""), {}
            if not url:
                break
        else:
            raise CloudUnavailable(f"{base}: the list has more than {MOST_PAGES} pages")


def read(found: Iterable[Mapping[str, Any]]) -> dict[tuple[str, Market], float]:
    """US dollars an hour of one Linux machine, by size and market; of several meters, the one that holds since the latest day."""
    prices: dict[tuple[str, Market], tuple[str, float]] = {}
    for meter in found:
        name = str(meter.get("skuName") or "")
        if (
            meter.get("type") != "Consumption"
            or meter.get("unitOfMeasure") != "1 Hour"
            or meter.get("currencyCode") != "USD"
            or str(meter.get("productName") or "").endswith((" Windows", " Cloud Services"))
            or name.endswith(" Low Priority")
            or not is_price(meter.get("retailPrice"))
        ):
            continue
        key = (str(meter.get("armSkuName")), Market.SPOT if name.endswith(" Spot") else Market.ON_DEMAND)
        since = str(meter.get("effectiveStartDate") or "")
        if key not in prices or prices[key][0] < since:
            prices[key] = since, float(meter["retailPrice"])
    return {key: price for key, (_, price) in prices.items()}


def _quoted(text: str) -> str:
    return text.replace("'", "''")
