"""Train a small model with Lightning's Trainer and spotburst's callback.

    python train_lightning.py
    spotburst run --uri file:///tmp/checkpoints --run mine -- python train_lightning.py

What spotburst needs is marked with "spotburst" at the end of the line.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from job_wrapper.checkpoint import ResumableSampler  # spotburst
from job_wrapper.checkpoint.lightning import SpotburstCallback  # spotburst


class Module(LightningModule):
    """Two layers that learn to shift their input."""

    def __init__(self, step_time: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 16))
        self.step_time = step_time

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        time.sleep(self.step_time)
        print(f"step {self.global_step + 1} loss {loss.item():.6f}", flush=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.layers(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small model with Lightning.")
    parser.add_argument("--epochs", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="SECONDS", help="least time that a step takes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the final weights are written")
    args = parser.parse_args()
    seed_everything(1)

    x = torch.randn(120, 16)
    train, check = (TensorDataset(part, part.roll(1, dims=1).tanh()) for part in (x[:100], x[100:]))
    sampler = ResumableSampler(train, seed=1, batch_size=16)  # spotburst
    loader = DataLoader(train, batch_sampler=sampler)
    module = Module(args.step_time)
    spotburst = SpotburstCallback(config={"epochs": args.epochs})  # spotburst
    trainer = Trainer(
        max_epochs=args.epochs,
        callbacks=[EarlyStopping("val_loss", patience=3), spotburst],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    path = spotburst.attach(trainer, loader)  # spotburst
    trainer.fit(module, loader, DataLoader(check, batch_size=10), ckpt_path=path)
    if args.out:
        torch.save(module.state_dict(), args.out)


if __name__ == "__main__":
    main()
