"""What two ranks do with a `ShardedCheckpointer` (part of ``dcp_program``)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from job_wrapper.checkpoint import DirectCommitter, ResumableSampler, dcp_writer, sharded
from job_wrapper.checkpoint.sharded import ShardedCheckpointer
from job_wrapper.errors import StoreError

STEPS, BATCH, SAMPLES = 9, 4, 18
"""Steps in all, samples of a step on all ranks together, samples in an epoch: its fifth step is short."""


def committer_of(folder: Path | None) -> DirectCommitter | None:
    return DirectCommitter.open(f"file://{folder}", "test") if folder and dist.get_rank() == 0 else None


def train(
    folder: Path | None,
    stop: int = 0,
    *,
    stateful: bool = False,
    whole: Any = lambda tree: tree,
    saves: tuple[int, ...] = (),
) -> dict[str, Any]:
    """One attempt. ``stop``: at that step an urgent checkpoint is asked for, with which it ends."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    dataset = TensorDataset(torch.arange(SAMPLES), torch.linspace(-1, 1, SAMPLES * 5).view(SAMPLES, 5))
    sampler = ResumableSampler(dataset, seed=2, batch_size=BATCH // ranks, rank=rank, num_replicas=ranks)
    loader: Any = DataLoader(dataset, batch_sampler=sampler)
    if stateful:
        loader = StatefulDataLoader(dataset, 2, shuffle=True, generator=torch.Generator().manual_seed(rank))
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    first, second = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.2)), torch.nn.Linear(7, 5)
    for model in (first, second):
        fully_shard(model, mesh=mesh)
    adam = torch.optim.AdamW(first.parameters(), lr=0.01)
    sgd = torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, patience=1, factor=0.5)
    mine = np.random.default_rng(rank)
    torch.manual_seed(10 + rank)
    log: list[Any] = []
    committer = committer_of(folder)
    state = {"first": first, "second": second, "adam": adam, "sgd": sgd, "plateau": plateau, "mine": mine, "log": log}
    outcome: dict[str, Any] = {"code": None}
    try:
        with ShardedCheckpointer(
            **state, data=loader if stateful else sampler, config={"lr": 0.01}, committer=committer, epoch=0
        ) as checkpoint:
            outcome |= {"began_at": checkpoint.completed, "tracker": checkpoint.tracker_id()}
            outcome["loaded"] = whole({"first": first.state_dict(), "second": second.state_dict()})
            while checkpoint.completed < STEPS:
                for ids, x in loader:
                    loss = (second(first(x)) - x).square().mean() + mine.random() * second.weight.sum()
                    for optimizer in (adam, sgd):
                        optimizer.zero_grad()
                    loss.backward()
                    adam.step()
                    sgd.step()
                    gathered: list[Any] = [None] * ranks
                    dist.all_gather_object(gathered, (ids.tolist(), loss.item()))
                    plateau.step(sum(one for _, one in gathered))
                    log.append(([i for ids, _ in gathered for i in ids], [one for _, one in gathered]))
                    if committer is not None and checkpoint.completed + 1 in (*saves, stop):
                        committer.ask(urgent=True, stop=checkpoint.completed + 1 == stop)
                    checkpoint.step()
                    if checkpoint.completed == STEPS:
                        break
    except SystemExit as end:
        outcome["code"] = end.code
    outcome |= {"log": log, "weights": whole({"first": first.state_dict(), "second": second.state_dict()})}
    outcome |= {"moments": whole(adam.state_dict()["state"]), "plateau": plateau.state_dict()}
    return outcome


def damage_shard(folder: Path, rank: int) -> None:
    """One bit in that rank's newest pack."""
    if dist.get_rank() == 0:
        pack = max(folder.rglob(f"dcp-{rank}-*.pack"), key=lambda path: path.stat().st_mtime_ns)
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(data)
    dist.barrier()


def outage_at_the_end(folder: Path) -> dict[str, Any]:
    """The store is away at the first try of the final save, when one rank's patience is just over and the other's is not."""
    write, clock, tries = dcp_writer.RunWriter.write_data, sharded.time, []

    def away_at_first(self: Any, plan: Any, planner: Any) -> Any:
        tries.append(self.step)
        if len(tries) == 1:
            raise StoreError("the store is away")
        return write(self, plan, planner)

    passes = iter(range(dist.get_rank(), 10**6, 10**3 * dist.get_rank() + 1))
    dcp_writer.RunWriter.write_data = away_at_first  # type: ignore[method-assign]
    sharded.time = SimpleNamespace(monotonic=lambda: float(next(passes)), sleep=lambda seconds: None)  # type: ignore[assignment]
    try:
        return train(folder)
    finally:
        dcp_writer.RunWriter.write_data, sharded.time = write, clock  # type: ignore[method-assign]


def rank_dies_while_saving(folder: Path) -> str:
    """A commit, then rank 1 is killed while it writes its part of the next. Returns, on rank 0, the kind of error."""
    write = dcp_writer.RunWriter.write_data

    def die(self: Any, plan: Any, planner: Any) -> Any:
        if dist.get_rank() == 1 and self.step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, plan, planner)

    dcp_writer.RunWriter.write_data = die  # type: ignore[method-assign]
    try:
        train(folder, saves=(3, 6))
    except Exception as error:
        return type(error).__name__
    return ""
