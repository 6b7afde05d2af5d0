"""A pass is bounded in time: what it has not got to do is left to the next one, which decides it anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.slurm.client import SlurmClient

LONGEST = 40.0
"""Seconds after which a pass begins no further call. The one that goes on then is bounded by itself (10 s of Slurm, 15 s of a cloud)."""


class Patience:
    """Of one pass after another. Seconds by ``clock``."""

    def __init__(self, seconds: float = LONGEST, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._began = clock()

    def begin(self) -> None:
        """A pass begins."""
        self._began = self._clock()

    def over(self) -> bool:
        """It has taken so long that it is to begin nothing more."""
        return self._clock() - self._began >= self._seconds


class _Patient:
    def __init__(self, client: SlurmClient, patience: Patience) -> None:
        self._client, self._patience = client, patience

    def __getattr__(self, name: str) -> Any:
        if self._patience.over():
            raise SlurmUnavailable("this pass has taken too long: the rest is left to the next one")
        return getattr(self._client, name)


def patient(client: SlurmClient, patience: Patience) -> SlurmClient:
    """The client, whose every method raises ``SlurmUnavailable`` once the pass's patience is over."""
    return cast(SlurmClient, _Patient(client, patience))
