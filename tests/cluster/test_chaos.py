"""A few faults of ``bench_chaos`` and ``bench_crowd``, always the same: as many as fit into the time of a test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_chaos import chaos
from tests.bench.bench_crowd import crowd
from tests.bench.chaos_faults import plan
from tests.bench.crowd_faults import FAULTS as KINDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

SEED = 15
FAULTS = 6


def test_a_few_random_faults(able: None, tmp_path: Path) -> None:
    """Every commit is kept, the result is bit-identical, no machine is left and no job is stuck."""
    assert len({p.kind for p in plan(SEED, FAULTS)}) == FAULTS
    chaos(tmp_path, SEED, FAULTS)


def test_many_jobs_under_each_kind_of_fault(able: None, tmp_path: Path) -> None:
    """Each job goes on from its run's newest checkpoint and ends well, no machine is left and no node unusable."""
    crowd(tmp_path, SEED, len(KINDS), "22.05")
