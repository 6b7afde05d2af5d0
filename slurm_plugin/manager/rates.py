"""How often machines are taken back, as their nodes are told at launch: what ``--interval auto`` goes by."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from job_wrapper.interval import rounded
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.ledger import Ledger
from slurm_plugin.placement import Experience, interruption_rate

AGAIN = 600.0
"""Seconds before the ledger is read anew: it reads a week, and says nothing new within minutes."""


class Rates:
    """Of offerings, from the ledger."""

    def __init__(self, ledger: Ledger, steady: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._steady = ledger, steady
        self._seen: Mapping[str, Experience] = {}
        self._until = float("-inf")

    def of(self, offering: Offering) -> float:
        """Interruptions a machine hour, to a power of two."""
        if self._steady() >= self._until:
            self._seen, self._until = self._ledger.experience(), self._steady() + AGAIN
        return rounded(interruption_rate(offering.market, self._seen.get(offering.id) or Experience()))
