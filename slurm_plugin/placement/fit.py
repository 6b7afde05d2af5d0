"""Whether an offering's machines are as large as the nodes that they are to be. Pure.

Source: slurm.conf(5), "Node configuration": a node that registers with fewer CPUs or GPUs, or less memory, than its line says is invalid, and
is set DRAIN. A cloud's figure of memory is what the machine has before its firmware and kernel take theirs, so one that is below
RealMemory can never be reached.
"""

from __future__ import annotations

from slurm_plugin.cloud.sizes import MachineSize


def too_small(machine: MachineSize | None, node: MachineSize | None) -> str:
    """What the machine lacks of its node's line, both figures in words; "" if nothing, or if one of the two is not known."""
    if machine is None or node is None:
        return ""
    pairs = (
        (machine.cpus, node.cpus, "CPU", "cpus"),
        (machine.memory_mb, node.memory_mb, "MB of memory", "memory_mb"),
        (machine.gpus, node.gpus, "GPU", "gpus.count"),
    )
    lacking = [f"{has} {unit if has == 1 or ' ' in unit else unit + 's'} where {key} is {wants}" for has, wants, unit, key in pairs if has < wants]  # fmt: skip
    return (
        f"its machine is smaller than the node: {', '.join(lacking)}; slurmd on it would be set DRAIN"
        if lacking
        else ""
    )
