"""A small real training run for the tests: everything that can go wrong at a resume is in it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

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


class Stream(IterableDataset):
    """The same samples one after the other, each worker its share, with a place that torchdata's loader asks for."""

    def __init__(self, length: int, noise: bool) -> None:
        self.numbers, self.next, self.loaded = Numbers(length, noise), 0, False

    def __iter__(self) -> Iterator[Any]:
        self.next, self.loaded = self.next if self.loaded else 0, False
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        while self.next * stride + first < len(self.numbers):
            self.next += 1
            yield self.numbers[(self.next - 1) * stride + first]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next, self.loaded = state["next"], True


@dataclass(frozen=True)
class Kind:
    """How the data comes: ``what`` is "sampler", "distributed", "stateful" or "stream"."""

    what: str = "sampler"
    workers: int = 0
    persistent: bool = False
    drop_last: bool = False
    accumulate: int = 1
    """Batches of a step."""
    overlap: bool = False
    """Parameters are large, and copied while training goes on."""

    def make(self, length: int, batch_size: int) -> tuple[Any, ResumableSampler | None]:
        """The loader, and the sampler in it that counts epochs, if there is one."""
        dataset = Numbers(length, noise=self.workers == 0)
        options: dict[str, Any] = {"num_workers": self.workers, "persistent_workers": self.persistent}
        if self.what in ("stateful", "stream"):
            data = Stream(length, noise=self.workers == 0) if self.what == "stream" else dataset
            shuffle = None if self.what == "stream" else True
            return StatefulDataLoader(data, batch_size, shuffle, drop_last=self.drop_last, **options), None
        of: Any = dataset
        seed: int | None = 5
        if self.what == "distributed":
            of, seed = DistributedSampler(Numbers(2 * length, False), num_replicas=2, rank=1, seed=5), None
            dataset = Numbers(2 * length, noise=self.workers == 0)
        sampler = ResumableSampler(of, seed=seed, batch_size=batch_size, drop_last=self.drop_last)
        return DataLoader(dataset, batch_sampler=sampler, **options), sampler


KINDS = {
    "sampler": Kind(),
    "workers": Kind(workers=2),
    "persistent workers": Kind(workers=2, persistent=True),
    "drop_last": Kind(drop_last=True),
    "accumulation": Kind(accumulate=4),
    "distributed": Kind("distributed"),
    "stateful": Kind("stateful"),
    "stateful workers": Kind("stateful", workers=2),
    "stateful persistent workers": Kind("stateful", workers=2, persistent=True),
    "overlap": Kind(overlap=True),
    "stream": Kind("stream"),
    "stream workers": Kind("stream", workers=2),
}


@dataclass
class Attempt:
    """What one attempt leaves behind. ``log`` is part of the state: (ids, loss) of every step since the beginning."""

    log: list[Any] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    began_at: int = 0
    exit_code: int | None = None


def train(
    committer: DirectCommitter | None,
    *,
    epochs: int = 3,
    length: int = 22,
    batch_size: int = 4,
    kind: Kind = KINDS["sampler"],
    before_step: Callable[[int, DirectCommitter | None], None] = lambda step, committer: None,
) -> Attempt:
    """One attempt. ``before_step(n, committer)`` is called before the n-th step ends; SystemExit ends the attempt, other errors too."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    loader, sampler = kind.make(length, batch_size)
    width = 20_000 if kind.overlap else 8
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    by_epoch = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)
    mine = np.random.default_rng(4)
    attempt = Attempt()
    options: Any = {"committer": committer, "config": {"lr": 0.01}, "staging": "overlap" if kind.overlap else True}
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "by_epoch": by_epoch, "average": average}
    state |= {"scaler": scaler, "mine": mine, "log": attempt.log, "ends": attempt.ends}
    try:
        with Checkpointer(**state, data=loader, epoch=0, **options) as checkpoint:
            attempt.began_at = checkpoint.completed

            def step(batches: list[Any]) -> None:
                optimizer.zero_grad()
                for _, x in batches:
                    loss = model(x).square().mean() * (1 + mine.random())
                    scaler.scale(loss / len(batches)).backward()
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                average.update_parameters(model)
                attempt.log.append(([i for ids, _ in batches for i in ids.tolist()], loss.item()))
                before_step(checkpoint.completed + 1, committer)
                checkpoint.step(len(batches))

            for epoch in range(sampler.epoch if sampler else checkpoint.values["epoch"], epochs):
                checkpoint.values["epoch"] = epoch
                batches: list[Any] = []
                for batch in loader:
                    batches.append(batch)
                    if len(batches) == kind.accumulate:
                        step(batches)
                        batches = []
                if batches:
                    step(batches)
                by_epoch.step()
                attempt.ends.append(epoch)
                torch.rand(())  # an evaluation, say
                checkpoint.values["epoch"] = epoch + 1
    except SystemExit as stop:
        attempt.exit_code = int(stop.code or 0)
    attempt.weights = {k: v.clone() for k, v in model.state_dict().items()}
    attempt.optimizer = optimizer.state_dict()
    attempt.others = {"average": average.state_dict(), "scaler": scaler.state_dict(), "mine": mine.bit_generator.state}
    attempt.others |= {"scheduler": scheduler.state_dict(), "by_epoch": by_epoch.state_dict()}
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
    assert_equal(one.others, other.others)


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
