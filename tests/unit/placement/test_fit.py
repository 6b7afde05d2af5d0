"""Machines that are smaller than the nodes that they are to be."""

from __future__ import annotations

import math

import pytest

from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.placement import Knowledge, OfferingState, Passed, describe, plan, too_small

NODE = MachineSize(8, 30_000, 2)
SMALL = Offering("ec2", "r", "a", "small", Market.SPOT)
LARGE = Offering("ec2", "r", "a", "large", Market.SPOT)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (MachineSize(8, 30_000, 2), ()),
        (MachineSize(96, 1_000_000, 8), ()),
        (None, ()),
        (MachineSize(4, 30_000, 2), ("4 CPUs where cpus is 8",)),
        (MachineSize(8, 29_999, 2), ("29999 MB of memory where memory_mb is 30000",)),
        (MachineSize(1, 30_000, 1), ("1 CPU where cpus is 8", "1 GPU where gpus.count is 2")),
    ],
)
def test_both_figures_are_told(machine: MachineSize | None, words: tuple[str, ...]) -> None:
    said = too_small(machine, NODE)
    assert bool(said) == bool(words)
    assert all(word in said for word in words)
    assert ("DRAIN" in said) == bool(words)


def test_what_is_too_small_is_never_asked_whatever_its_state_and_what_is_unknown_is() -> None:
    known = Knowledge(sizes={SMALL.id: MachineSize(4, 30_000, 2)})
    cooling = {SMALL.id: OfferingState(SMALL.id, 1, refused_until=50.0)}
    found = plan([SMALL, LARGE], cooling, 10.0, known=known, node=NODE)
    assert found.ready == (LARGE.id,)
    assert [(c.offering_id, c.kind, c.until) for c in found.passed] == [(SMALL.id, Passed.SMALL, math.inf)]
    alone = plan([SMALL], {}, 10.0, known=known, node=NODE)
    assert not alone.only_capacity
    assert "4 CPUs where cpus is 8" in describe(alone, 10.0)
    assert "until an administrator" in describe(alone, 10.0)
    assert plan([SMALL], {}, 10.0, known=known).ready == (SMALL.id,), "nothing is asked of it"
