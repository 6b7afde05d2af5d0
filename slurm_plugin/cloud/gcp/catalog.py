"""What Compute Engine tells of machine types: what they are made of, and what that costs. Kept, since neither changes from hour to hour.

Source: Compute Engine API v1, ``machineTypes.get``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import requests
from google.auth.exceptions import GoogleAuthError

from slurm_plugin.cloud.gcp import prices
from slurm_plugin.cloud.gcp.client import Gce
from slurm_plugin.cloud.gcp.prices import Parts, Prices
from slurm_plugin.cloud.price_lists import KEPT
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.config_providers import ANY_ZONE
from slurm_plugin.errors import CloudUnavailable


class Catalog:
    """Of one project and region. Not to be used in several threads at a time; its callers in the manager are two, and what is lost is a call."""

    def __init__(self, api: Gce, steady: Callable[[], float] = time.monotonic) -> None:
        self._api, self._steady = api, steady
        self._parts: dict[str, Parts] = {}
        self._prices: Prices = {}
        self._until = float("-inf")

    def sizes(self, offerings: Collection[Offering]) -> dict[str, MachineSize]:
        """By offering id; a type that is in none of the offering's zones is left out. Raises ``ApiError``."""
        return {
            id_: MachineSize(parts.cpus, parts.memory_mb, sum(count for _, count in parts.gpus))
            for id_, parts in self.parts(offerings).items()
        }

    def parts(self, offerings: Collection[Offering]) -> dict[str, Parts]:
        """As ``sizes``."""
        found = {offering.id: self._made_of(offering) for offering in offerings}
        return {id_: parts for id_, parts in found.items() if parts is not None}

    def prices(self, offerings: Collection[Offering]) -> dict[str, float]:
        """US dollars an hour by offering id; those not known are left out. Raises ``ApiError``, ``CloudUnavailable``."""
        parts = {offering: self._made_of(offering) for offering in offerings}
        if any(parts.values()) and self._steady() >= self._until:
            self._prices, self._until = self._list(), self._steady() + KEPT
        known = {
            o.id: prices.price(o.instance_type, made_of, o.market, self._prices)
            for o, made_of in parts.items()
            if made_of is not None
        }
        return {id_: price for id_, price in known.items() if price is not None}

    def _made_of(self, offering: Offering) -> Parts | None:
        name = offering.instance_type
        if name not in self._parts:
            zones = [offering.zone]
            if offering.zone in ANY_ZONE:
                zones = list(self._api.config.zones) or self._api.zones()
            for zone in zones:
                told = self._api.machine_type(zone, name)
                if told is not None:
                    gpus = tuple((a.guest_accelerator_type, int(a.guest_accelerator_count)) for a in told.accelerators)
                    runs = str(told.architecture or "")
                    self._parts[name] = Parts(int(told.guest_cpus), int(told.memory_mb), gpus, runs)
                    break
        return self._parts.get(name)

    def _list(self) -> Prices:
        base = self._api.config.endpoint_url or prices.CATALOG
        try:
            with self._session() as session:
                return prices.read(prices.skus(session, base), self._api.config.region)
        except GoogleAuthError as error:
            raise CloudUnavailable(f"{base}: credentials: {error}") from error

    def _session(self) -> requests.Session:
        if self._api.config.endpoint_url:
            return requests.Session()
        import google.auth
        from google.auth.transport.requests import AuthorizedSession

        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-billing.readonly"])
        return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
