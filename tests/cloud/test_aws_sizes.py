"""Instance types as moto describes them, by boto3's own client."""

from __future__ import annotations

import pytest

from slurm_plugin.cloud.aws.sizes import read
from slurm_plugin.cloud.sizes import DescribesTypes, MachineSize
from slurm_plugin.errors import CloudUnavailable
from tests.fixtures.ec2_stage import Ec2Stage


def test_types_alternatives_and_unknown_ones(ec2: Ec2Stage) -> None:
    assert isinstance(ec2.provider, DescribesTypes)
    small, both, unknown = (
        ec2.offering(instance_type=name) for name in ("g5.xlarge", "g5.12xlarge,g4dn.xlarge", "no.such-type")
    )
    assert ec2.provider.machine_sizes([small, both, unknown]) == {
        small.id: MachineSize(4, 16384, 1),
        both.id: MachineSize(4, 16384, 1),
    }
    ec2.unreachable(True)
    with pytest.raises(CloudUnavailable):
        ec2.provider.machine_sizes([small])


def test_neuron_devices_count_as_gpus() -> None:
    record = {"VCpuInfo": {"DefaultVCpus": 128}, "MemoryInfo": {"SizeInMiB": 524288}}
    neuron = {"NeuronInfo": {"NeuronDevices": [{"Count": 16, "Name": "Trainium"}]}}
    assert read(record) == MachineSize(128, 524288, 0)
    assert read({**record, **neuron}) == MachineSize(128, 524288, 16)
