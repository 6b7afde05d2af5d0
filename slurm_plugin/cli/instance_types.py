"""For ``check``: whether what can be bought is as large as the nodes that it is to be, by the clouds' own descriptions, asked now."""

from __future__ import annotations

from job_wrapper.errors import SpotburstError
from slurm_plugin.cli.memory import remembered
from slurm_plugin.cloud.sizes import DescribesTypes, MachineSize
from slurm_plugin.config import Config
from slurm_plugin.manager.providers import build
from slurm_plugin.placement import too_small


def instance_types(config: Config) -> str | None:
    """What was found, in words; None where no provider of burst.yaml describes its types. Raises ``SpotburstError`` that names what is too small.

    What a cloud does not tell now is taken from what the manager has learned; what is not known at all is no fault.
    """
    describing = set()
    sizes: dict[str, MachineSize] = dict(remembered(config).sizes)
    away: list[str] = []
    for name in config.providers:
        offerings = {o for nodeset in config.nodesets for o in config.offerings_of(nodeset) if o.provider == name}
        try:
            provider = build(config, name)
            if isinstance(provider, DescribesTypes) and offerings:
                describing.add(name)
                sizes |= provider.machine_sizes(offerings)
        except SpotburstError as error:
            away.append(str(error))
    if not describing and not away:
        return None
    faults: dict[str, None] = {}
    unknown: set[str] = set()
    for nodeset in config.nodesets:
        for offering in config.offerings_of(nodeset):
            if offering.provider in describing and offering.id not in sizes:
                unknown.add(offering.id)
            if small := too_small(sizes.get(offering.id), nodeset.size):
                faults[f"nodesets.{nodeset.name}: {offering.id}: {small}"] = None
    if faults:
        raise SpotburstError("; ".join(faults))
    told = ["as large as their nodes" if not unknown else f"not known: {', '.join(sorted(unknown))}", *away]
    return "; ".join(told)
