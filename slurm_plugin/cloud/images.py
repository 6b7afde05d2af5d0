"""The image that a provider's machines boot from, as its cloud shows it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slurm_plugin.cloud.provider import Offering


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image. Texts are "" where there is nothing to tell."""

    name: str
    """As burst.yaml has it, and what that stands for now."""
    missing: str = ""
    """Why no machine can boot from it, in words that go after its name."""
    fix: str = ""
    """What to do about that."""
    withdrawn: str = ""
    """What its owner says of it, where it still can be used."""
    untold: str = ""
    """Why it was not looked at."""
    architecture: str = ""
    """``x86_64`` or ``arm64``."""


@runtime_checkable
class DescribesImages(Protocol):
    """A provider whose cloud describes images."""

    def image(self) -> ImageFacts:
        """What burst.yaml names, in the provider's region. Raises ``CloudUnavailable``, ``NotPermitted``."""
        ...

    def architectures(self, offerings: Collection[Offering]) -> dict[str, dict[str, frozenset[str]]]:
        """By offering id and instance type; what is not known is left out. Raises ``CloudUnavailable``, ``NotPermitted``."""
        ...
