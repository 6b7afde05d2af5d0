"""Live spot prices, asked for seldom, in a thread of its own, of providers that tell them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.say import Once

EVERY = 900.0
"""Seconds. Spot prices change a few times a day."""


@runtime_checkable
class TellsPrices(Protocol):
    """A provider whose cloud tells spot prices."""

    def spot_prices(self, offerings: Collection[Offering]) -> dict[str, float]:
        """Price of one machine an hour in US dollars, by offering id; those not known are left out. Raises ``CloudUnavailable``."""
        ...


class Pricing:
    """``start`` and ``stop`` as the manager's other threads; what it learns is in the ledger."""

    def __init__(
        self,
        offerings: Collection[Offering],
        lanes: Mapping[str, Lane],
        ledger: Ledger,
        once: Once,
        every: float = EVERY,
    ) -> None:
        self._ledger, self._once, self._every = ledger, once, every
        self._asked = {
            name: (lane.provider, [o for o in offerings if o.provider == name and o.market is Market.SPOT])
            for name, lane in lanes.items()
            if isinstance(lane.provider, TellsPrices)
        }
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prices", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current call."""
        self._stopped.set()

    def look(self) -> None:
        """Ask all providers once."""
        for name, (provider, offerings) in self._asked.items():
            if not offerings or not isinstance(provider, TellsPrices):
                continue
            try:
                self._ledger.note_prices(provider.spot_prices(offerings))
                self._once.well(f"prices of {name}")
            except Exception as error:
                said = str(error) if isinstance(error, CloudUnavailable) else repr(error)
                self._once.fault(f"prices of {name}", f"not known anew: {said}")

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.look()
            self._stopped.wait(self._every)
