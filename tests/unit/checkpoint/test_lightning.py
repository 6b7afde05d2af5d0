"""A Lightning Trainer that is stopped and resumed ends with the same bytes as one that never was."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from job_wrapper.checkpoint import DirectCommitter, ResumableSampler
from job_wrapper.checkpoint.lightning import SpotburstCallback
from job_wrapper.errors import ExitCode, UsageError
from tests.unit.checkpoint.hearing import told
from tests.unit.checkpoint.training import assert_equal, open_run

BATCHES = 4
STEPS = 2 * BATCHES
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(LightningModule):
    """Asks for a checkpoint during one batch, and ends the program with it; the losses are part of the state."""

    def __init__(self, committer: DirectCommitter | None, stop: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.committer, self.stop = committer, stop
        self.losses: list[tuple[list[int], float]] = []
        self.checked: list[float] = []
        self.began_at = -1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def on_train_start(self) -> None:
        self.began_at = len(self.losses)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if isinstance(batch, dict):
            batch = [torch.cat([batch["a"][0], batch["b"][0]]), torch.cat([batch["a"][1], batch["b"][1]])]
        ids, x = batch
        loss = (self.layers(x) - x.sum()).square().mean()
        self.losses.append((ids.tolist(), loss.item()))
        if self.committer is not None and len(self.losses) == self.stop:
            self.committer.ask(urgent=True, stop=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.checked.append(self.layers(batch[1]).sum().item())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"], checkpoint["checked"] = list(self.losses), list(self.checked)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses, self.checked = list(checkpoint["losses"]), list(checkpoint["checked"])


@dataclass
class Outcome:
    """What one attempt leaves behind."""

    module: Module
    moments: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def train(
    folder: Path, committer: DirectCommitter | None, stop: int = 0, *, mixed: bool = False, **options: Any
) -> Outcome:
    torch.manual_seed(7)
    module = Module(committer, stop)
    data = TensorDataset(torch.arange(14), torch.linspace(-1, 1, 56).view(14, 4))
    sampler = ResumableSampler(data, seed=3, batch_size=4)
    loader, check = DataLoader(data, batch_sampler=sampler), DataLoader(data, batch_size=7)
    loaders: Any = loader
    if mixed:
        loaders = {name: StatefulDataLoader(data, size, shuffle=True) for name, size in (("a", 4), ("b", 2))}
    spotburst = SpotburstCallback(committer=committer)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=[spotburst],
        **options,
    )
    outcome = Outcome(module)
    try:
        trainer.fit(module, loaders, check, ckpt_path=spotburst.attach(trainer, None if mixed else loader))
    except SystemExit as end:
        outcome.exit_code = int(end.code or 0)
    if trainer.optimizers:
        outcome.moments = trainer.optimizers[0].state_dict()
    return outcome


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.module.losses == other.module.losses
    assert one.module.checked == other.module.checked
    assert_equal(dict(one.module.state_dict()), dict(other.module.state_dict()))
    assert_equal(one.moments, other.moments)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("undisturbed"), None)


@pytest.mark.parametrize("stop", range(1, STEPS + 1))
def test_a_stop_at_each_batch(tmp_path: Path, undisturbed: Outcome, stop: int) -> None:
    first = train(tmp_path, open_run(tmp_path), stop)
    assert (first.exit_code, len(first.module.losses)) == (ExitCode.REQUEUED, stop)
    second = train(tmp_path, open_run(tmp_path))
    assert second.exit_code is None
    assert_same(second, undisturbed)


def test_stops_in_a_row_with_gradients_accumulated(tmp_path: Path) -> None:
    reference = train(tmp_path, None, accumulate_grad_batches=2)
    for stop in (1, 4, 6):  # asked in the middle of an accumulation, and at an epoch's end
        assert train(tmp_path, open_run(tmp_path), stop, accumulate_grad_batches=2).exit_code == ExitCode.REQUEUED
    assert_same(train(tmp_path, open_run(tmp_path), accumulate_grad_batches=2, log_every_n_steps=0), reference)


def test_several_loaders_with_places_of_their_own(tmp_path: Path) -> None:
    reference = train(tmp_path, None, mixed=True)
    assert len(reference.module.losses) == 14  # until the longest is through, twice
    for stop in (2, 5, 9):
        assert train(tmp_path, open_run(tmp_path), stop, mixed=True).exit_code == ExitCode.REQUEUED
    assert_same(train(tmp_path, open_run(tmp_path), mixed=True), reference)


def test_a_loader_without_a_place_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(torch.arange(14), torch.rand(14, 4))
    for stop in (2, 0):
        committer = open_run(tmp_path)
        spotburst = SpotburstCallback(committer=committer)
        module = Module(committer, stop)
        quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, callbacks=[spotburst], **quiet)
        with contextlib.suppress(SystemExit):
            trainer.fit(module, DataLoader(data, batch_size=4, shuffle=True), ckpt_path=spotburst.attach(trainer))
        assert ("not a place in the data" in caplog.text) is (stop == 0)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, undisturbed: Outcome) -> None:
    train(tmp_path, open_run(tmp_path))
    again = train(tmp_path, open_run(tmp_path))
    assert len(again.module.losses) == STEPS
    assert_equal(dict(again.module.state_dict()), dict(undisturbed.module.state_dict()))


def test_a_trainer_without_the_callback_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give it to the Trainer first"):
        SpotburstCallback().attach(Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path))


def test_the_modules_values_reach_the_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with told(tmp_path, monkeypatch) as messages:
        losses = train(tmp_path, open_run(tmp_path), log_every_n_steps=2).module.losses
    assert [m["step"] for m in messages] == [2, 4, 6, STEPS]
    assert [m["values"]["loss"] for m in messages] == pytest.approx([loss for _, loss in losses[1::2]])
