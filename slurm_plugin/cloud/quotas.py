"""What an account may have of a cloud at a time, and how much of it a machine takes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slurm_plugin.cloud.provider import Offering


@dataclass(frozen=True, slots=True)
class Quota:
    """``limit`` and ``used`` (None: not told) are counted in ``unit`` (vCPUs, GPUs). ``more``: how to ask the cloud for a larger one.

    Raises ``ValueError`` for what nobody can count.
    """

    name: str
    place: str
    limit: float
    used: float | None
    unit: str
    more: str

    def __post_init__(self) -> None:
        if not all(math.isfinite(number) for number in (self.limit, self.used or 0.0)):
            raise ValueError(f"{self.name}: a limit of {self.limit}, {self.used} in use")


@dataclass(frozen=True, slots=True)
class Take:
    """One machine takes ``each`` of the quota. Raises ``ValueError`` where that is not more than 0."""

    quota: Quota
    each: float

    def __post_init__(self) -> None:
        if not 0 < self.each < math.inf:
            raise ValueError(f"{self.quota.name}: a machine takes {self.each}")

    @property
    def fits(self) -> int:
        """How many machines the whole quota is enough for."""
        return int(self.quota.limit // self.each)


Ways = tuple[tuple[Take, ...], ...]
"""The ways in which a machine of an offering may be made, each with all that it takes. None at all: no quota counts it."""


@runtime_checkable
class TellsQuotas(Protocol):
    """A provider whose cloud tells what the account may have."""

    def quotas(self, offerings: Collection[Offering]) -> dict[str, Ways]:
        """By offering id; one whose quota is not known is left out. Raises ``CloudUnavailable``, ``NotPermitted``."""
        ...
