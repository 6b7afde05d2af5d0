"""A small real training run for the tests: everything that can go wrong at a resume is in it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from job_wrapper.checkpoint import Checkpointer, DirectCommitter, ResumableSampler


class Numbers(Dataset):
    """Sample n is n, and noise that is drawn from the global generators as augmentation does."""

    def __init__(self, length: int, noise: bool) -> None:
        self.length, self.noise = length, noise

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        x = torch.full((4,), float(index))
        if self.noise:
            x += random.random() + np.random.rand() + torch.rand(())
        return index, x


@dataclass
class Attempt:
    """What one attempt leaves behind. ``log`` is part of the state: (ids, loss) of every step since the beginning."""

    log: list[Any] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    began_at: int = 0
    exit_code: int | None = None


def train(
    committer: DirectCommitter | None,
    *,
    epochs: int = 3,
    length: int = 22,
    batch_size: int = 4,
    workers: int = 0,
    before_step: Callable[[int, DirectCommitter | None], None] = lambda step, committer: None,
) -> Attempt:
    """One attempt. ``before_step(n, committer)`` is called before the n-th step ends; SystemExit ends the attempt, other errors too."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    dataset = Numbers(length, noise=workers == 0)
    sampler = ResumableSampler(dataset, seed=5, batch_size=batch_size)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    by_epoch = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    attempt = Attempt()
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "by_epoch": by_epoch}
    try:
        with Checkpointer(
            **state, log=attempt.log, ends=attempt.ends, data=sampler, committer=committer, config={"lr": 0.01}
        ) as checkpoint:
            attempt.began_at = checkpoint.completed
            for epoch in range(sampler.epoch, epochs):
                for ids, x in loader:
                    loss = model(x).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    scheduler.step()
                    attempt.log.append((ids.tolist(), loss.item()))
                    before_step(checkpoint.completed + 1, committer)
                    checkpoint.step()
                by_epoch.step()
                attempt.ends.append(epoch)
                torch.rand(())  # an evaluation, say
    except SystemExit as stop:
        attempt.exit_code = int(stop.code or 0)
    attempt.weights = {k: v.clone() for k, v in model.state_dict().items()}
    attempt.optimizer = optimizer.state_dict()
    return attempt


def open_run(folder: Path, run: str = "test", **options: Any) -> DirectCommitter:
    """The next attempt's right to commit."""
    return DirectCommitter.open(f"file://{folder}", run, **options)


def assert_same(one: Attempt, other: Attempt) -> None:
    """Both ended with the same bytes, by the same way."""
    assert one.log == other.log
    assert one.ends == other.ends
    assert_equal(one.weights, other.weights)
    assert_equal(one.optimizer, other.optimizer)


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    """The same types, and the same bits."""
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape, path
        raw = [t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
        assert torch.equal(*raw), path
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes(), path
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple, deque)):
        assert len(one) == len(other), path
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{path}[{index}]")
    elif isinstance(one, float):
        assert one.hex() == other.hex(), path
    else:
        assert one == other, path
