"""Numbers with their words, where the number is one."""

from __future__ import annotations

import pytest

from job_wrapper.counted import counted
from job_wrapper.run.bounds import Bounds, check_bounds
from job_wrapper.store.io_types import Summary
from slurm_plugin.placement import Need, Rules
from slurm_plugin.placement.rules import stance


@pytest.mark.parametrize(("count", "told"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_a_number_and_its_word(count: int, told: str) -> None:
    assert counted(count, "node") == told
    assert counted(count, "recovery", "recoveries") == f"{count} {'recovery' if count == 1 else 'recoveries'}"


def test_bounds_of_one() -> None:
    barren = check_bounds(Summary(epoch=2, barren=1), Bounds(barren=1))
    assert str(barren).startswith("1 attempt in a row ended")
    often = check_bounds(Summary(epoch=2, recoveries=2), Bounds(recoveries=1))
    assert "was brought back 1 time, which" in str(often)
    one = Rules(on_demand_after_failures=1)
    assert stance(one, Need(), 0.0)[1] == "on-demand only after 1 start that came to nothing"
    assert stance(one, Need(failures=1), 0.0)[1] == "1 start came to nothing"
