"""Instance types as EC2 describes them.

Source: Amazon EC2 API Reference, DescribeInstanceTypes and ``InstanceTypeInfo``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from slurm_plugin.cloud.aws.client import Ec2
from slurm_plugin.cloud.aws.fleet import instance_types
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.cloud.sizes import MachineSize, smallest

TYPES_A_CALL = 100
"""As many values as a filter takes; a name that EC2 does not know fails a call by ``InstanceTypes``, not one by a filter."""


def machine_sizes(ec2: Ec2, offerings: Collection[Offering]) -> dict[str, MachineSize]:
    """By offering id; of alternatives (``g5.xlarge,g6.xlarge``) the least of each that is known. Raises ``ApiError``."""
    names = {offering.id: instance_types(offering) for offering in offerings}
    described = describe(ec2, {name for listed in names.values() for name in listed})
    known = {name: read(record) for name, record in described.items()}
    found = {id_: [known[name] for name in listed if name in known] for id_, listed in names.items()}
    return {id_: smallest(sizes) for id_, sizes in found.items() if sizes}


def describe(ec2: Ec2, types: Collection[str]) -> dict[str, dict[str, Any]]:
    """``InstanceTypeInfo`` by type; those that the region does not have are left out. Raises ``ApiError``."""
    wanted = sorted(types)
    known: dict[str, dict[str, Any]] = {}
    for start in range(0, len(wanted), TYPES_A_CALL):
        asked = [{"Name": "instance-type", "Values": wanted[start : start + TYPES_A_CALL]}]
        for record in ec2.pages("describe_instance_types", "InstanceTypes", Filters=asked):
            known[record["InstanceType"]] = record
    return known


def read(record: Mapping[str, Any]) -> MachineSize:
    """One type's description."""
    gpus = sum(int(gpu.get("Count") or 0) for gpu in (record.get("GpuInfo") or {}).get("Gpus") or ())
    neuron = sum(int(d.get("Count") or 0) for d in (record.get("NeuronInfo") or {}).get("NeuronDevices") or ())
    return MachineSize(
        cpus=int(record["VCpuInfo"]["DefaultVCpus"]),
        memory_mb=int(record["MemoryInfo"]["SizeInMiB"]),
        gpus=gpus + neuron,
    )
