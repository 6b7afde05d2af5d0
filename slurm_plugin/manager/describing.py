"""How large offerings' machines are, asked of clouds that describe their instance types. A type does not change: the ledger keeps the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from slurm_plugin.cloud.provider import Offering
from slurm_plugin.cloud.sizes import DescribesTypes
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.seldom import FIRST, Seldom

EVERY = 900.0
"""Seconds after which what is not known is asked for again."""
KEPT = 7 * 86400.0
"""Seconds after which what is known is."""


class Describing(Seldom):
    """The manager begins after the first look, so that no launch goes before what can be known; a cloud that is away holds it up for ``FIRST`` at most."""

    name = "sizes"

    def __init__(
        self,
        offerings: Collection[Offering],
        lanes: Mapping[str, Lane],
        ledger: Ledger,
        once: Once,
        every: float = EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(once, every)
        self._ledger, self._clock = ledger, clock
        self._asked = {
            name: (lane.provider, [o for o in offerings if o.provider == name])
            for name, lane in lanes.items()
            if isinstance(lane.provider, DescribesTypes)
        }

    def start(self, patience: float = FIRST) -> None:
        """See ``Seldom``."""
        super().start(patience)

    def look(self) -> None:
        """See ``Seldom``."""
        try:
            known = self._ledger.sizes(since=self._clock() - KEPT)
        except Exception as error:
            self._fault("sizes of machines", error)
            return
        unknown = {
            name: (provider, [offering for offering in offerings if offering.id not in known])
            for name, (provider, offerings) in self._asked.items()
        }
        self._each(
            unknown,
            lambda provider, some: self._ledger.note_sizes(provider.machine_sizes(some)),
            "sizes of {}'s machines",
        )
