"""An aws provider's settings, all kinds of them."""

from __future__ import annotations

from slurm_plugin.config import AwsProvider

CONFIG = AwsProvider(
    type="aws",
    region="eu-west-1",
    image="ami-1",
    subnets={"eu-west-1a": "subnet-a", "eu-west-1b": "subnet-b"},
    security_groups=("sg-1",),
    instance_profile="node",
    tags={"team": "ml"},
    reservations=(
        {"id": "cr-1", "instance_type": "p4d.24xlarge", "zone": "eu-west-1a"},
        {"id": "cr-2", "instance_type": "p5.48xlarge", "zone": "eu-west-1b", "kind": "capacity-block"},
    ),
)
