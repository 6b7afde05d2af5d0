"""Whether the ledger's file was damaged, or taken away, while the manager runs. What heals it is a new start, which moves a damaged file aside
(``ledger_file``)."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_plugin.errors import LedgerDamaged
from slurm_plugin.ledger import Ledger

EVERY = 60.0
"""Seconds between two looks through all of the file, its opening among them: so a disk that damages each new ledger has the manager started
again once a minute at most."""


class Soundness:
    """Looks after passes that failed, and after any call of the ledger that did."""

    def __init__(self, ledger: Ledger, steady: Callable[[], float] = time.monotonic) -> None:
        """``ledger``: as just opened. ``steady``: a clock in seconds that nobody sets."""
        self._ledger, self._steady = ledger, steady
        self._looked = steady()

    def look(self, failed: bool) -> None:
        """After each pass, and whether it ``failed``. Raises ``LedgerDamaged`` when the manager has to be started again."""
        gone = self._ledger.taken_away()
        if gone:
            raise LedgerDamaged(
                f"{gone} was removed or replaced while the manager ran: the manager ends; the next start uses what is there, "
                "or begins a new one and finds its machines by their tags"
            )
        if not (failed or self._ledger.doubtful) or self._steady() - self._looked < EVERY:
            return
        damage = self._ledger.damage()
        self._looked = self._steady()
        if damage:
            raise LedgerDamaged(
                f"the ledger was damaged while the manager ran ({damage}): the manager ends; the next start moves it aside "
                "and finds its machines by their tags"
            )
