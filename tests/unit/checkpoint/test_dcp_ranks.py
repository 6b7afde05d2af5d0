"""Ranks that are missing at the commit, that write twice, or that are two of one number: nothing is committed, nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.storage import WriteResult

from job_wrapper.checkpoint import DirectCommitter
from job_wrapper.checkpoint.dcp import DistributedRun, RunWriter
from job_wrapper.errors import CheckpointFailed
from job_wrapper.store import PartWriter, collect

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def open_run(folder: Path) -> DistributedRun:
    run = DistributedRun.open(committer=DirectCommitter.open(f"file://{folder}", "test"))
    assert run is not None
    return run


def loaded(folder: Path, like: torch.Tensor) -> tuple[int | None, torch.Tensor]:
    run, state = open_run(folder), {"x": torch.zeros_like(like)}
    assert run.load(state)
    assert run.restore is not None
    return run.restore.step, state["x"]


def test_a_rank_killed_between_its_write_and_the_commit(tmp_path: Path) -> None:
    program = Path(__file__).with_name("dcp_lost_rank.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen([sys.executable, program, tmp_path, str(rank)], env=environment) for rank in range(2)]
    try:
        assert both[1].wait(240) == -9
        assert both[0].wait(240) == 3
    finally:
        for process in both:
            process.kill()
    print(json.loads((tmp_path / "said").read_text()))
    store = tmp_path / "store"
    dead = {p.name for p in store.rglob("e00000001/dcp-1-*.part")}
    assert len(dead) == 2  # of the second save it had written its part
    run, state = open_run(store), {"x": torch.zeros(8)}
    assert run.load(state) and run.restore is not None and run.restore.step == 1
    assert state["x"].equal(torch.arange(8.0))
    dcp.save(state, storage_writer=run.writer(3))
    run.close()
    # What the dead save had written is collected with the next commit; what the first commit needs is kept.
    assert len([p for p in store.rglob("e00000001/dcp-1-*.part") if p.name in dead]) == 1
    assert loaded(store, torch.zeros(8))[0] == 3


class Without(RunWriter):
    """As when one rank's results do not reach the coordinator."""

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, [[one for one in rank if one.index.fqn != "y"] for rank in results])


class Twice(RunWriter):
    """As when two processes have the same rank, or one has written twice: two parts of one name."""

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        committer = self._required()
        with PartWriter(committer.store, committer.data_prefix, "dcp-0") as part:
            part.add_bytes("x@0", b"other")
            other = ("dcp-0", part.finish())
        super().finish(metadata, [*results, [WriteResult(results[0][0].index, 5, other)]])


@pytest.mark.parametrize(
    ("kind", "text"), [(Without, "no rank wrote y at"), (Twice, "two ranks wrote the part 'dcp-0'")]
)
def test_results_that_are_not_those_of_all_ranks_once(kind: type[RunWriter], text: str, tmp_path: Path) -> None:
    committer = DirectCommitter.open(f"file://{tmp_path}", "test")
    state = {"x": torch.ones(4), "y": torch.ones(2)}
    dcp.save({"x": state["x"]}, storage_writer=RunWriter(committer, step=1))
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state, storage_writer=kind(committer, step=2))
    (error,) = (failure for failure, _ in caught.value.failures.values())
    assert isinstance(error, CheckpointFailed) and text in str(error) and "?" in str(error)
    assert [c.step for c in committer._claim.entry.summary.commits] == [1]
    dcp.save(state, storage_writer=RunWriter(committer, step=3))
    step, x = loaded(tmp_path, torch.zeros(4))
    assert step == 3 and x.equal(torch.ones(4))


@pytest.mark.parametrize("step", [1 << 70, -(1 << 70)])
def test_a_step_that_no_manifest_can_hold(step: int, tmp_path: Path) -> None:
    committer = DirectCommitter.open(f"file://{tmp_path}", "test")
    with pytest.raises(CheckpointException, match="step"):
        dcp.save({"x": torch.ones(4)}, storage_writer=RunWriter(committer, step=step))
    assert committer._claim.entry.summary.commits == ()
    collect(committer._claim)
