"""What Azure tells of machine sizes: what they have, and what they cost. Kept, since neither changes from hour to hour.

Source: Azure REST API, Microsoft.Compute, "Resource Skus - List". ``vCPUs`` counts those of the size that a constrained one is cut from;
``vCPUsAvailable`` those that there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import requests

from slurm_plugin.cloud.azure import prices
from slurm_plugin.cloud.azure.client import Arm
from slurm_plugin.cloud.price_lists import KEPT
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.sizes import MachineSize


class Catalog:
    """Of one subscription and region."""

    def __init__(self, api: Arm, steady: Callable[[], float] = time.monotonic) -> None:
        self._api, self._steady = api, steady
        self._skus: dict[str, dict[str, Any]] = {}
        self._prices: dict[tuple[str, Market], float] = {}
        self._asked: frozenset[str] = frozenset()
        self._until = float("-inf")

    def sizes(self, offerings: Collection[Offering]) -> dict[str, MachineSize]:
        """By offering id; a size that the region does not have is left out. Raises ``ApiError``."""
        found = {id_: read(sku) for id_, sku in self.skus(offerings).items()}
        return {id_: size for id_, size in found.items() if size is not None}

    def skus(self, offerings: Collection[Offering]) -> dict[str, dict[str, Any]]:
        """As ``sizes``: all that Azure tells of a size. Asked for once: the list is long."""
        wanted = {offering.instance_type for offering in offerings}
        if not wanted <= self._skus.keys():
            listed = (sku for sku in self._api.skus() if sku.get("resourceType") == "virtualMachines")
            self._skus |= {name: sku for sku in listed if (name := str(sku.get("name"))) in wanted}
        return {o.id: self._skus[o.instance_type] for o in offerings if o.instance_type in self._skus}

    def prices(self, offerings: Collection[Offering]) -> dict[str, float]:
        """US dollars an hour by offering id; those not known are left out. Raises ``CloudUnavailable``."""
        types = frozenset(offering.instance_type for offering in offerings)
        if types and (self._steady() >= self._until or not types <= self._asked):
            base = self._api.config.endpoint_url or prices.RETAIL
            with requests.Session() as session:
                self._prices = prices.read(prices.meters(session, base, self._api.config.region, types))
            self._asked, self._until = types, self._steady() + KEPT
        found = {o.id: self._prices.get((o.instance_type, o.market)) for o in offerings}
        return {id_: price for id_, price in found.items() if price is not None}


def read(sku: Mapping[str, Any]) -> MachineSize | None:
    """One size's capabilities; None where they do not tell its CPUs and memory."""
    try:
        told = capabilities(sku)
        return MachineSize(
            cpus=int(told.get("vCPUsAvailable") or told["vCPUs"]),
            memory_mb=round(float(told["MemoryGB"]) * 1024),
            gpus=int(float(told.get("GPUs") or 0)),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def capabilities(sku: Mapping[str, Any]) -> dict[str, str]:
    """By name. Raises ``AttributeError``, ``TypeError`` where they are in no shape."""
    return {str(c.get("name")): str(c.get("value")) for c in sku.get("capabilities") or ()}
