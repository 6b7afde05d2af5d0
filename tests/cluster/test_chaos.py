"""A few faults of ``tests/bench/bench_chaos.py``, always the same: as many as fit into the time of a test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_chaos import chaos
from tests.bench.chaos_faults import plan

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

SEED = 15
FAULTS = 6


def test_a_few_random_faults(able: None, tmp_path: Path) -> None:
    """Every commit is kept, the result is bit-identical, no machine is left and no job is stuck."""
    assert len({p.kind for p in plan(SEED, FAULTS)}) == FAULTS
    chaos(tmp_path, SEED, FAULTS)
