"""What may be given as ``data=``, and what is said about the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from job_wrapper.checkpoint import Checkpointer, ResumableSampler, UnsupportedState
from job_wrapper.errors import ConfigChanged, UsageError
from tests.unit.checkpoint.training import open_run

DATA = TensorDataset(torch.arange(10))


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (DataLoader(DATA, shuffle=True), r"DataLoader\(shuffle=True\) can't go on .* batch_sampler=ResumableSampler"),
        (DataLoader(DATA), "this DataLoader can't go on .* StatefulDataLoader instead"),
        (DataLoader(Endless()), "an IterableDataset has no places to go back to; use torchdata's StatefulDataLoader"),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), "hand it to ResumableSampler as it is"),
        (DistributedSampler(DATA, 2, 0), "hand it to ResumableSampler as it is"),
        ([1, 2], "a builtins.list has no state_dict"),
    ],
)
def test_data_without_a_place_is_refused_with_what_to_use(tmp_path: Path, data: Any, hint: str) -> None:
    with pytest.raises(UnsupportedState, match=hint):
        Checkpointer(data=data, committer=open_run(tmp_path))


def resumed(folder: Path, **options: Any) -> None:
    for _ in range(2):
        with Checkpointer(**options, committer=open_run(folder)) as checkpoint:
            checkpoint.step()


def test_a_resume_without_data_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "spotburst"):
        resumed(tmp_path)
    (line,) = caplog.messages
    assert "restored step 1, but not a place in the data" in line
    assert "data=ResumableSampler" in line


@pytest.mark.parametrize(
    "options",
    [
        {"data": False},
        {"loader": StatefulDataLoader(DATA)},
        {"order": ResumableSampler(10, seed=1, batch_size=2)},
    ],
)
def test_no_warning_where_there_is_no_loader_or_it_has_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    with caplog.at_level(logging.WARNING, "spotburst"):
        for attempt in range(2):
            if "order" in options:
                options = {"order": ResumableSampler(10, seed=1, batch_size=2)}
            with Checkpointer(**options, committer=open_run(tmp_path)) as checkpoint:
                assert checkpoint.completed == attempt
                checkpoint.step()
    assert caplog.messages == []


def batches(sampler: ResumableSampler, count: int = 100) -> list[list[int]]:
    taken = []
    for batch in sampler:
        taken.append(batch)
        sampler.advance()
        if len(taken) == count:
            break
    return taken


@pytest.mark.parametrize("rank", [0, 1])
def test_a_distributed_sampler_is_taken_over_as_it_is(rank: int) -> None:
    def make() -> DistributedSampler[Any]:
        return DistributedSampler(range(11), num_replicas=2, rank=rank, seed=3)  # type: ignore[arg-type]

    sampler = ResumableSampler(make(), batch_size=4)
    for epoch in (0, 1):
        plain = make()
        plain.set_epoch(epoch)
        assert [i for batch in batches(sampler) for i in batch] == list(plain)
    halfway = ResumableSampler(make(), batch_size=4)
    begun = batches(halfway, 1)
    other = ResumableSampler(make(), batch_size=4)
    other.load_state_dict(halfway.state_dict())
    assert begun + batches(other) == batches(ResumableSampler(make(), batch_size=4))


def test_the_position_of_a_distributed_sampler_is_that_of_all_ranks() -> None:
    def make(rank: int, replicas: int = 2) -> ResumableSampler:
        return ResumableSampler(DistributedSampler(range(12), replicas, rank), batch_size=2)  # type: ignore[arg-type]

    first = make(0)
    batches(first, 2)
    other = make(1)
    other.load_state_dict(first.state_dict())
    assert other.consumed == 2
    with pytest.raises(ConfigChanged, match="num_replicas: 2 in the checkpoint, 3 now"):
        make(0, 3).load_state_dict(first.state_dict())


def test_what_belongs_to_the_distributed_sampler_is_not_given_twice() -> None:
    with pytest.raises(UsageError, match="leave them out"):
        ResumableSampler(DistributedSampler(range(4), 2, 0), seed=1, batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seed is missing"):
        ResumableSampler(4, batch_size=1)
    with pytest.raises(UsageError, match="Endless has no length"):
        ResumableSampler(Endless(), seed=1, batch_size=1)  # type: ignore[arg-type]


def test_another_number_of_ranks_shares_the_same_batches() -> None:
    two = [ResumableSampler(22, seed=1, batch_size=2, rank=rank, num_replicas=2) for rank in (0, 1)]
    begun = [batches(one, 3) for one in two]
    alone = ResumableSampler(22, seed=1, batch_size=4)
    alone.load_state_dict(two[1].state_dict())
    whole = [[*a, *b] for a, b in zip(*begun, strict=True)] + batches(alone)
    assert whole == batches(ResumableSampler(22, seed=1, batch_size=4))
