"""A transformers Trainer that is stopped and resumed ends with the same bytes as one that never was."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from job_wrapper.checkpoint import DirectCommitter
from job_wrapper.checkpoint.hf import SpotburstCallback
from job_wrapper.errors import ExitCode, UsageError
from tests.unit.checkpoint.hearing import told
from tests.unit.checkpoint.training import assert_equal, open_run

STEPS = 12
"""Two epochs of 6 batches, the last of which is short."""
_TIMES = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "eval_runtime")
_TIMES += ("eval_samples_per_second", "eval_steps_per_second")


@dataclass
class Outcome:
    """What one attempt leaves behind."""

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    moments: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    began_at: int = 0
    exit_code: int | None = None


class Stop(TrainerCallback):
    """Asks for a checkpoint during one step and ends the program with it; notes where the attempt began."""

    def __init__(self, committer: DirectCommitter | None, at: int) -> None:
        self.committer, self.at, self.began_at = committer, at, -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began_at = state.global_step

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.committer is not None and state.global_step + 1 == self.at:
            self.committer.ask(urgent=True, stop=True)


def dataset(length: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 20, (6,), generator=generator) for _ in range(length)]
    return [{"input_ids": row, "labels": row} for row in rows]


def train(folder: Path, committer: DirectCommitter | None, stop: int = 0, **options: Any) -> Outcome:
    arguments = TrainingArguments(
        str(folder / "output"),
        num_train_epochs=2,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        logging_steps=4,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
        **options,
    )
    torch.manual_seed(7)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0)
    )
    spotburst, stopper = SpotburstCallback(committer=committer), Stop(committer, stop)
    trainer = Trainer(
        model, arguments, train_dataset=dataset(11), eval_dataset=dataset(3), callbacks=[spotburst, stopper]
    )
    outcome = Outcome()
    try:
        trainer.train(resume_from_checkpoint=spotburst.attach(trainer))
    except SystemExit as end:
        outcome.exit_code = int(end.code or 0)
    outcome.weights = {k: v.clone() for k, v in model.state_dict().items()}
    outcome.moments = trainer.optimizer.state_dict()
    outcome.log = [{k: v for k, v in row.items() if k not in _TIMES} for row in trainer.state.log_history]
    outcome.began_at = stopper.began_at
    return outcome


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.log == other.log
    assert_equal(one.weights, other.weights)
    assert_equal(one.moments, other.moments)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("undisturbed"), None)


@pytest.mark.parametrize(
    "stop", (1, 5, 6, 7, 12)
)  # in the middle, before and after a log, at an epoch's end and the last
def test_a_stop_at_each_step(tmp_path: Path, undisturbed: Outcome, stop: int) -> None:
    first = train(tmp_path, open_run(tmp_path), stop)
    assert first.exit_code == ExitCode.REQUEUED
    second = train(tmp_path, open_run(tmp_path))
    assert (second.began_at, second.exit_code) == (stop, None)
    assert_same(second, undisturbed)


def test_stops_in_a_row_with_gradients_accumulated(tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2}  # 3 steps an epoch
    reference = train(tmp_path, None, **options)
    for stop in (1, 3, 5):
        assert train(tmp_path, open_run(tmp_path), stop, **options).exit_code == ExitCode.REQUEUED
    assert_same(train(tmp_path, open_run(tmp_path), **options), reference)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, undisturbed: Outcome) -> None:
    train(tmp_path, open_run(tmp_path))
    again = train(tmp_path, open_run(tmp_path))
    assert again.began_at == STEPS
    assert_equal(again.weights, undisturbed.weights)


def test_no_pickle_is_stored(tmp_path: Path) -> None:
    train(tmp_path / "work", open_run(tmp_path / "store"), 2)
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files and not any(b"data.pkl" in path.read_bytes() for path in files)


def test_attached_twice_is_an_error(tmp_path: Path) -> None:
    spotburst = SpotburstCallback()
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0)
    )
    trainer = Trainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True), train_dataset=dataset(4))
    assert spotburst.attach(trainer) is None
    with pytest.raises(UsageError, match="already attached"):
        spotburst.attach(trainer)


def test_the_trainers_values_reach_the_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with told(tmp_path, monkeypatch) as messages:
        train(tmp_path, open_run(tmp_path))
    assert {"loss", "eval_loss", "learning_rate"} <= {name for m in messages for name in m["values"]}
    assert [m["step"] for m in messages][-1] == STEPS
