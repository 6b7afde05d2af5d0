"""How large the machines of an instance type are, by the cloud's own description."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slurm_plugin.cloud.provider import Offering


@dataclass(frozen=True, slots=True)
class MachineSize:
    """``memory_mb`` in MiB, as Slurm counts RealMemory. ``gpus``: whole devices, AWS's Neuron devices among them."""

    cpus: int
    memory_mb: int
    gpus: int = 0


@runtime_checkable
class DescribesTypes(Protocol):
    """A provider whose cloud describes its instance types."""

    def machine_sizes(self, offerings: Collection[Offering]) -> dict[str, MachineSize]:
        """By offering id; a type that the cloud does not know is left out. Raises ``CloudUnavailable``."""
        ...


def smallest(sizes: Iterable[MachineSize]) -> MachineSize:
    """The least of each, of types that serve alternatively. Raises ``ValueError`` for none."""
    found = list(sizes)
    return MachineSize(
        min(size.cpus for size in found), min(size.memory_mb for size in found), min(size.gpus for size in found)
    )
