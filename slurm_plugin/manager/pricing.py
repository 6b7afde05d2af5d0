"""Live prices, of providers whose clouds tell them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.seldom import Seldom

EVERY = 900.0
"""Seconds. Spot prices change a few times a day."""


@runtime_checkable
class TellsPrices(Protocol):
    """A provider whose cloud tells prices: EC2 those of spot machines, the others also what is paid on demand."""

    def prices(self, offerings: Collection[Offering]) -> dict[str, float]:
        """Price of one machine an hour in US dollars, by offering id; those not known are left out. Raises ``CloudUnavailable``."""
        ...


class Pricing(Seldom):
    """See ``Seldom``."""

    name = "prices"

    def __init__(
        self,
        offerings: Collection[Offering],
        lanes: Mapping[str, Lane],
        ledger: Ledger,
        once: Once,
        every: float = EVERY,
    ) -> None:
        super().__init__(once, every)
        self._ledger = ledger
        self._asked = {
            name: (lane.provider, to_ask(offerings, name))
            for name, lane in lanes.items()
            if isinstance(lane.provider, TellsPrices)
        }

    def look(self) -> None:
        """See ``Seldom``."""
        self._each(self._asked, lambda provider, some: self._ledger.note_prices(provider.prices(some)), "prices of {}")


def to_ask(offerings: Collection[Offering], provider: str) -> list[Offering]:
    """Those of the provider that are not paid for already, and beside each what its machine costs on demand."""
    mine = [o for o in offerings if o.provider == provider and o.market is not Market.RESERVATION]
    return list(dict.fromkeys([*mine, *(replace(o, market=Market.ON_DEMAND) for o in mine)]))
