"""torch.distributed.checkpoint over the run's store: what is saved comes back, on any number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from job_wrapper.checkpoint import UnsupportedState, dcp_writer, sharded
from job_wrapper.checkpoint.dcp import DistributedRun
from job_wrapper.errors import CheckpointFailed, ExitCode, Fenced, RestoreFailed, StoreError
from job_wrapper.store import RunLog, verify_checkpoint
from tests.unit.checkpoint.training import assert_equal, open_run

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two real ranks over gloo have done."""
    folder = tmp_path_factory.mktemp("ranks")
    program = Path(__file__).with_name("dcp_program.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, program, folder, str(rank)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process, code in zip(both, (0, -signal.SIGKILL), strict=True):
            _, errors = process.communicate(timeout=800)
            assert process.returncode == code, errors
    finally:
        for process in both:
            process.kill()
    result: dict[str, Any] = torch.load(folder / "result", weights_only=False)
    result["folder"] = folder
    return result


@pytest.mark.parametrize("how", ["save", "async"])
def test_sharded_training_goes_on_at_the_step(ranks: dict[str, Any], how: str) -> None:
    stopped, resumed, undisturbed = ranks[f"{how} stopped"], ranks[f"{how} resumed"], ranks["undisturbed"]
    assert stopped["code"] == ExitCode.REQUEUED
    assert resumed["began_at"] == {"save": 2, "async": 5}[how]
    assert resumed["log"] == undisturbed["log"]
    assert_equal(resumed["state"], undisturbed["state"])


def test_two_ranks_to_one(ranks: dict[str, Any]) -> None:
    assert ranks["one loaded"]["shards"]["tall"][5, -1] == 6
    assert_equal(ranks["one loaded"], ranks["two saved"])


def test_one_rank_to_two(ranks: dict[str, Any]) -> None:
    assert len(ranks["one saved"]["values"]["log"]) == 6
    assert_equal(ranks["two loaded"], ranks["one saved"])


@pytest.mark.parametrize("data", ["sampler", "stateful"])
def test_all_state_of_all_ranks_goes_on_at_the_step(ranks: dict[str, Any], data: str) -> None:
    undisturbed, ended = ranks[f"{data} undisturbed"], ranks[f"{data} ended"]
    assert (ranks[f"{data} stopped"]["code"], ranks[f"{data} resumed"]["code"]) == (ExitCode.REQUEUED,) * 2
    assert ranks[f"{data} resumed"]["began_at"] == 2
    for key in ("log", "weights", "moments", "plateau"):
        assert_equal(ended[0][key], undisturbed[key])
    assert ranks[f"{data} stopped"]["tracker"] == ended[0]["tracker"] == ended[1]["tracker"]


def test_a_damaged_shard_is_passed_over_on_all_ranks_alike(ranks: dict[str, Any]) -> None:
    assert [one["began_at"] for one in ranks["sampler ended"]] == [5, 5]
    assert [one["began_at"] for one in ranks["stateful ended"]] == [2, 2]  # one bit of rank 1's newest shard was turned


def test_another_number_of_ranks_goes_on_in_the_data(ranks: dict[str, Any]) -> None:
    two, one, again = (ranks[f"sharded of {name}"] for name in ("two", "one", "two again"))
    assert (one["began_at"], again["began_at"]) == (3, 7)
    assert_equal(one["loaded"], two["weights"])
    assert_equal(again["loaded"], one["weights"])
    assert [ids for ids, _ in again["log"]] == [ids for ids, _ in ranks["sampler undisturbed"]["log"]]


def test_another_rank_than_the_first_may_commit_and_all_save_and_stop_at_its_steps(ranks: dict[str, Any]) -> None:
    outcome = ranks["second rank commits"]
    (saved, stopped, refused), other = outcome["ranks"]
    assert outcome["root"] == 1 and refused
    assert other == (saved, stopped, refused)
    committer = open_run(ranks["folder"] / "second", "r")
    assert [commit.step for commit in committer._claim.entry.summary.commits] == saved[-3:]
    assert stopped == saved[-1], "no step is done after the last checkpoint"


def test_ranks_whose_clocks_differ_wait_out_an_outage_together(ranks: dict[str, Any]) -> None:
    assert ranks["outage at the end"]["code"] is None
    committer = open_run(ranks["folder"] / "outage")
    assert [commit.step for commit in committer._claim.entry.summary.commits] == [9]


def test_a_rank_that_dies_while_saving_commits_nothing(ranks: dict[str, Any]) -> None:
    assert ranks["death"]
    committer = open_run(ranks["folder"] / "death")
    assert [commit.step for commit in committer._claim.entry.summary.commits] == [3]
    verify_checkpoint(committer.store, committer._claim.entry.summary.commits[-1].manifest)


def test_torchrun_under_the_wrapper_saves_and_resumes_on_all_ranks(ranks: dict[str, Any], tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "train_fsdp.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    run = "import sys; from job_wrapper.run import main; sys.exit(main())"
    wrapper = [sys.executable, "-c", run, "--uri", f"file://{tmp_path}/store", "--run", "r", "--"]
    command = [*wrapper, *torchrun, "--steps", "20", "--out", str(tmp_path / "example.pt")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(
        [*command, "--step-time", "1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert first.stdout
    said = []
    for line in first.stdout:
        said.append(line)
        if line.startswith("step 1 "):  # there are 19 s left to be stopped in
            first.send_signal(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM, said
    assert not (tmp_path / "example.pt").exists()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert second.returncode == 0, second.stderr
    assert "resumed at step " in second.stdout
    assert_equal(torch.load(tmp_path / "example.pt"), torch.load(ranks["folder"] / "example.pt"))


def open_distributed(folder: Path) -> DistributedRun:
    run = DistributedRun.open(committer=open_run(folder))
    assert run is not None
    return run


def example() -> dict[str, Any]:
    return {
        "tensors": {
            "a": torch.randn(3, 4),
            "half": torch.randn(5).bfloat16(),
            "scalar": torch.tensor(3),
            "empty": torch.empty(0, 2),
        },
        "strided": torch.arange(12.0).view(3, 4).t(),
        "list": [1, 2.5, None],
        "tuple": (1, "x", np.arange(4), torch.ones(2), (2**70, b"\x00\xff"), Counter("abca")),
        "nan": float("nan"),
    }


def blank(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.zeros_like(tree)
    if isinstance(tree, dict):
        return {k: blank(v) for k, v in tree.items()}
    return [0] * len(tree) if isinstance(tree, list) else 0


def test_every_kind_of_value_comes_back_and_no_pickle_is_stored(tmp_path: Path) -> None:
    state = example()
    run = open_distributed(tmp_path)
    assert run.restore is None and not run.load(example())
    dcp.save(state, storage_writer=run.writer(7))
    found = blank(state)
    resumed = open_distributed(tmp_path)
    assert resumed.load(found)
    assert resumed.restore is not None and resumed.restore.step == 7
    assert_equal({k: found[k] for k in state}, state)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"data.pkl" not in path.read_bytes()


def test_a_value_that_cannot_be_saved_is_named_and_nothing_is_committed(tmp_path: Path) -> None:
    run = open_distributed(tmp_path)
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"a": torch.ones(2), "model": {"hook": object()}}, storage_writer=run.writer(1))
    (error,) = (failure for failure, _ in caught.value.failures.values())
    assert isinstance(error, UnsupportedState)
    assert "model.hook" in str(error)
    assert open_distributed(tmp_path).restore is None


def test_async_save_holds_the_moment_of_the_call(tmp_path: Path) -> None:
    state = {"x": torch.arange(100_000.0), "log": [1], "table": ({"a": 1},)}
    run = open_distributed(tmp_path)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        saving = dcp.async_save(state, storage_writer=run.writer(1))
        state["x"].zero_()
        state["log"][0] = 2
        saving.result()  # type: ignore[union-attr]
        found = {"x": torch.zeros(100_000), "log": [0], "table": 0}
        assert open_distributed(tmp_path).load(found)
    finally:
        torch.distributed.destroy_process_group()
    assert found["x"].equal(torch.arange(100_000.0))
    assert found["log"] == [1]
    assert found["table"] == ({"a": 1},)


def test_async_saves_in_a_row(tmp_path: Path) -> None:
    state = {"frozen": torch.randn(500_000), "x": torch.zeros(1000)}
    run = open_distributed(tmp_path)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        for step in (1, 2, 3):
            state["x"].fill_(step)
            dcp.async_save(state, storage_writer=run.writer(step)).result()  # type: ignore[union-attr]
        found = blank(state)
        resumed = open_distributed(tmp_path)
        assert resumed.load(found)
    finally:
        torch.distributed.destroy_process_group()
    assert resumed.restore is not None and resumed.restore.step == 3
    assert_equal(found, state)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.pack")) < 2 * 2_000_000  # the frozen ones once


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    def packs() -> int:
        return sum(p.stat().st_size for p in tmp_path.rglob("*.pack"))

    state = {"frozen": torch.randn(500_000), "head": torch.randn(1000)}
    run = open_distributed(tmp_path)
    dcp.save(state, storage_writer=run.writer(1))
    first = packs()
    state["head"] += 1
    dcp.save(state, storage_writer=run.writer(2))
    assert 4000 <= packs() - first < 20_000
    found = blank(state)
    assert open_distributed(tmp_path).load(found)
    assert_equal(found, state)


def damage(folder: Path, epoch: int) -> None:
    for pack in folder.rglob(f"e{epoch:08d}/dcp-0-*.pack"):
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1  # one bit
        pack.write_bytes(data)


def test_a_damaged_checkpoint_is_passed_over_and_at_last_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        dcp.save({"x": torch.full((1000,), float(number))}, storage_writer=open_distributed(tmp_path).writer(number))
    damage(tmp_path, 2)
    found = {"x": torch.zeros(1000)}
    assert open_distributed(tmp_path).load(found)
    assert found["x"].eq(1).all()
    damage(tmp_path, 1)
    with pytest.raises(RestoreFailed):
        open_distributed(tmp_path).load(found)


def test_a_state_of_another_shape_is_an_error_and_no_damage(tmp_path: Path) -> None:
    run = open_distributed(tmp_path)
    dcp.save({"x": torch.ones(3)}, storage_writer=run.writer(1))
    resumed = open_distributed(tmp_path)
    with pytest.raises(CheckpointException, match="Size mismatch"):
        resumed.load({"x": torch.ones(4)})
    assert open_distributed(tmp_path).load({"x": torch.ones(3)})


def test_an_attempt_that_was_overtaken_commits_nothing(tmp_path: Path) -> None:
    older = open_distributed(tmp_path)
    newer = open_distributed(tmp_path)
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"x": torch.ones(3)}, storage_writer=older.writer(1))
    assert any(isinstance(failure, Fenced) for failure, _ in caught.value.failures.values())
    with pytest.raises(SystemExit) as end:
        older.wanted()
    assert end.value.code == ExitCode.FENCED
    assert newer.wanted() is False


def test_the_checkpoint_verifies_as_any_other(tmp_path: Path) -> None:
    committer = open_run(tmp_path)
    run = DistributedRun.open(committer=committer)
    assert run is not None
    dcp.save(example(), storage_writer=run.writer(1))
    verify_checkpoint(committer.store, committer._claim.entry.summary.commits[-1].manifest)


@pytest.mark.parametrize("patience", [0.0, 2000.0])
def test_the_final_save_is_tried_for_as_long_as_the_wrapper_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    write, passes, tries = dcp_writer.RunWriter.write_data, iter(range(0, 10**6, 700)), iter(range(10))

    def away_at_first(self: Any, plan: Any, planner: Any) -> Any:
        if next(tries) < 2:
            raise StoreError("the store is away")
        return write(self, plan, planner)

    monkeypatch.setattr(dcp_writer.RunWriter, "write_data", away_at_first)
    clock = SimpleNamespace(monotonic=lambda: float(next(passes)), sleep=lambda seconds: None)
    monkeypatch.setattr(sharded, "time", clock)
    committer = open_run(tmp_path)
    committer.patience = patience
    checkpoint = sharded.ShardedCheckpointer(model=torch.nn.Linear(2, 2), committer=committer)
    checkpoint.step()
    if patience:
        checkpoint.close()
    else:
        with pytest.raises(CheckpointFailed, match="the store is away"):
            checkpoint.close()
    commits = RunLog(committer.store, committer.run).tail().summary.commits  # type: ignore[union-attr]
    assert [commit.step for commit in commits] == ([1] if patience else [])
