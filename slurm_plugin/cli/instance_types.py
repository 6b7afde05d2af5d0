"""For ``check``: whether what can be bought is as large as the nodes that it is to be, by the clouds' own descriptions, asked now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from job_wrapper.errors import SpotburstError
from slurm_plugin.checks.finding import Finding, fault, ok, unknown
from slurm_plugin.cli.memory import remembered
from slurm_plugin.cloud.asking import readable
from slurm_plugin.cloud.provider import Provider
from slurm_plugin.cloud.sizes import DescribesTypes, MachineSize
from slurm_plugin.config import Config
from slurm_plugin.placement import too_small

WHAT = "instance types"
REACH = "credentials and network of this machine must let the manager reach the cloud (docs/providers.md)"
"""What to do where a cloud does not answer."""


def instance_types(config: Config, providers: Mapping[str, Provider]) -> Iterator[Finding]:
    """What was found; nothing where no provider describes its types. ``providers``: by the name in burst.yaml.

    What a cloud does not tell now is taken from what the manager has learned.
    """
    describing = set()
    sizes: dict[str, MachineSize] = dict(remembered(config).sizes)
    away: list[str] = []
    for name, provider in providers.items():
        offerings = config.offerings_at(name)
        try:
            if isinstance(provider, DescribesTypes) and offerings:
                describing.add(name)
                sizes |= readable(name, partial(provider.machine_sizes, offerings))
        except SpotburstError as error:
            away.append(str(error))
    faults: dict[str, None] = {}
    unknown_types: set[str] = set()
    for nodeset in config.nodesets:
        for offering in config.offerings_of(nodeset):
            if offering.provider in describing and offering.id not in sizes:
                unknown_types.add(offering.id)
            if small := too_small(sizes.get(offering.id), nodeset.size):
                faults[f"nodesets.{nodeset.name}: {offering.id}: {small}"] = None
    for one in faults:
        yield fault(WHAT, one, "a larger instance_type, or fewer cpus, memory_mb or gpus for the nodeset in burst.yaml")
    for one in away:
        yield unknown(WHAT, one, REACH)
    if unknown_types:
        yield unknown(
            WHAT,
            f"not known: {', '.join(sorted(unknown_types))}",
            "" if away else "look at the names of instance_type and zone in burst.yaml: the cloud does not know them",
        )
    if describing and not faults and not away and not unknown_types:
        yield ok(WHAT, "as large as their nodes")
