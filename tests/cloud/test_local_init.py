"""The first process of a machine of the embedded cloud: what it decides by itself."""

from __future__ import annotations

import math

import pytest

from slurm_plugin.cloud.local.init import booted_at

LAUNCHED = 1_800_000_000.4


@pytest.mark.parametrize("after", [0.0, 0.4, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("boot_time", [0.0, 0.1, 5.0])
def test_slurmctld_never_reckons_a_boot_from_before_the_launch(after: float, boot_time: float) -> None:
    begins = booted_at(LAUNCHED, boot_time, LAUNCHED + after)
    assert math.floor(begins) - 1 >= math.floor(LAUNCHED)
    assert begins >= LAUNCHED + after + boot_time
    assert begins <= max(LAUNCHED + after + boot_time, LAUNCHED + 1)
