"""One of two ranks that train a sharded model, stop, resume, and change their number: `python dcp_program.py FOLDER RANK`.

What happened is written to FOLDER/result by rank 0, as a dict of outcomes.
"""

from __future__ import annotations

import os
import random
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_map

from job_wrapper.checkpoint import DirectCommitter, rng
from job_wrapper.checkpoint.dcp import DistributedRun
from job_wrapper.protocol import COMMITS_VARIABLE, SOCKET_VARIABLE
from tests.unit.checkpoint import sharded_program as sharded

STEPS = 6
ROWS, COLUMNS = 6, 1 << 20
"""Of a tensor that lies in two segments of a pack."""


def whole(tree: Any) -> Any:
    """The same tree with every sharded tensor put together. On all ranks."""

    def one(value: Any) -> Any:
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return value.detach().clone() if isinstance(value, torch.Tensor) else value

    return tree_map(one, tree)


class Training:
    """A model, its optimizer, and what else there is to save, on as many ranks as there are."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        torch.manual_seed(1)
        # 5 and 7 rows are shared unevenly.
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.2), torch.nn.Linear(7, 5))
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.tall = distribute_tensor(torch.zeros(ROWS, COLUMNS), mesh, [Shard(0)])
        self.wide = distribute_tensor(torch.zeros(3, 5, dtype=torch.int64), mesh, [Shard(1)])
        self.log: list[tuple[int, float]] = []
        get_state_dict(
            self.model, self.optimizer
        )  # its first call gives the optimizer a state, with a count of its own
        torch.manual_seed(10 + self.rank)

    def state(self, own_rng: bool = True) -> dict[str, Any]:
        weights, moments = get_state_dict(self.model, self.optimizer)
        shards = {"tall": self.tall, "wide": self.wide}
        tree = {
            "model": weights,
            "optimizer": moments,
            "shards": shards,
            "values": {"log": tuple(self.log), "none": None},
        }
        return {**tree, f"rng-{self.rank}": rng.capture()} if own_rng else tree

    def load(self, run: DistributedRun, own_rng: bool = True) -> bool:
        tree = self.state(own_rng)
        if not run.load(tree):
            return False
        set_state_dict(self.model, self.optimizer, model_state_dict=tree["model"], optim_state_dict=tree["optimizer"])
        self.log = list(tree["values"]["log"])
        if own_rng:
            rng.restore(tree[f"rng-{self.rank}"])
        return True

    def step(self) -> int:
        number = len(self.log) + 1
        x = torch.rand(4, 5) + torch.arange(5) * number
        loss = (self.model(x) - x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.tall.to_local().add_(number)
        self.wide.to_local().add_(torch.arange(3).unsqueeze(1) + self.rank)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        self.log.append((number, mean.item()))
        return number


def open_run(folder: Path) -> tuple[DistributedRun, Callable[[], None]]:
    """The next attempt, and what asks it to save and stop."""
    committer = DirectCommitter.open(f"file://{folder}", "test") if dist.get_rank() == 0 else None
    run = DistributedRun.open(committer=committer)
    assert run is not None
    return run, lambda: committer.ask(urgent=True, stop=True) if committer else None


def attempt(folder: Path | None, stop: int = 0, asynchronous: bool = False) -> dict[str, Any]:
    """One attempt at the whole training."""
    training = Training()
    run, ask = open_run(folder) if folder else (None, lambda: None)
    if run is not None:
        training.load(run)
    began_at, code = len(training.log), None
    try:
        while len(training.log) < STEPS:
            number = training.step()
            if number == stop:
                ask()
            if run is None or not run.wanted():
                continue
            if asynchronous:
                saving = dcp.async_save(training.state(), storage_writer=run.writer(number))
                saving.result()  # type: ignore[union-attr]
            else:
                dcp.save(training.state(), storage_writer=run.writer(number))
    except SystemExit as end:
        code = end.code
    return {"began_at": began_at, "code": code, "log": training.log, "state": whole(training.state(own_rng=False))}


def change_ranks(folder: Path, save: bool) -> tuple[Any, Any]:
    """The whole state as it was loaded, and (with ``save``) as it is after three more steps and a save."""
    training = Training()
    run, ask = open_run(folder)
    training.load(run, own_rng=False)
    loaded = whole(training.state(own_rng=False))
    if not save:
        return loaded, None
    for _ in range(3):
        number = training.step()
    ask()
    assert run.wanted()
    dcp.save(training.state(own_rng=False), storage_writer=run.writer(number))
    return loaded, whole(training.state(own_rng=False))


def second_rank_commits(folder: Path) -> dict[str, Any]:
    """Rank 0's wrapper is not the one that commits. Requests come whenever they like, and ranks dawdle; at last the program is to stop."""
    rank, dice = dist.get_rank(), random.Random(dist.get_rank())
    if rank == 0:
        os.environ |= {SOCKET_VARIABLE: "/nowhere", COMMITS_VARIABLE: "0"}
    run = DistributedRun.open(f"file://{folder}", "r", interval=None)
    assert run is not None
    committer = run._committer
    if isinstance(committer, DirectCommitter):
        moments = [(0.05 + dice.random() / 5, last) for last in (False, False, False, True)]

        def ask() -> None:
            for pause, last in moments:
                time.sleep(pause)
                committer.ask(urgent=last, stop=last)

        threading.Thread(target=ask, daemon=True).start()
    saved, step, refused, state = [], 0, False, {"w": torch.zeros(2)}
    try:
        while True:
            step += 1
            state["w"] += 1
            time.sleep(dice.random() / 50)
            if run.wanted():
                run.save({**state, f"rank {rank}": (step,)}, step)
                saved.append(step)
                run.wanted()
    except SystemExit:
        pass
    try:
        dcp.save(state, storage_writer=run.writer(step))
    except CheckpointException:
        refused = True  # dcp.save has rank 0 coordinate
    every: list[Any] = [None, None]
    dist.all_gather_object(every, (saved, step, refused))
    run.close()
    for name in (SOCKET_VARIABLE, COMMITS_VARIABLE):
        os.environ.pop(name, None)
    return {"ranks": every, "root": run.root}


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)

    def meet(number: int, ranks: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{number}", rank=rank, world_size=ranks)

    result: dict[str, Any] = {}
    meet(1, 2)
    result["undisturbed"] = attempt(None)
    for name, stop in (("save", 2), ("async", 5)):
        result[f"{name} stopped"] = attempt(folder / name, stop, asynchronous=name == "async")
        result[f"{name} resumed"] = attempt(folder / name)
    _, result["two saved"] = change_ranks(folder / "ranks", save=True)
    for name, stateful in (("sampler", False), ("stateful", True)):
        place = folder / f"sharded-{name}"
        result[f"{name} undisturbed"] = sharded.train(None, stateful=stateful, whole=whole)
        result[f"{name} stopped"] = sharded.train(place, 2, stateful=stateful, whole=whole)
        result[f"{name} resumed"] = sharded.train(place, 5, stateful=stateful, whole=whole)
        every: list[Any] = [None, None]
        if stateful:
            sharded.damage_shard(place, 1)
        dist.all_gather_object(every, sharded.train(place, stateful=stateful, whole=whole))
        result[f"{name} ended"] = every
    result["second rank commits"] = second_rank_commits(folder / "second")
    result["outage at the end"] = sharded.outage_at_the_end(folder / "outage")
    result["sharded of two"] = sharded.train(folder / "reshard", 3, whole=whole)
    dist.destroy_process_group()
    if rank == 0:
        meet(2, 1)
        result["sharded of one"] = sharded.train(folder / "reshard", 7, whole=whole)
        result["one loaded"], result["one saved"] = change_ranks(folder / "ranks", save=True)
        dist.destroy_process_group()
    meet(3, 2)
    result["two loaded"], _ = change_ranks(folder / "ranks", save=False)
    result["sharded of two again"] = sharded.train(folder / "reshard", whole=whole)
    # As torchrun has it: the store is there, on a port of its own choice, before the ranks meet.
    hub = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = [hub.port if hub else 0]
    dist.broadcast_object_list(port)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port[0])}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    dist.destroy_process_group()
    sys.argv[1:] = ["--steps", "20", "--out", str(folder / "example.pt")]
    runpy.run_path(str(Path(__file__).parents[3] / "examples" / "train_fsdp.py"), run_name="__main__")
    meet(4, 2)
    result["death"] = sharded.rank_dies_while_saving(folder / "death")  # of rank 1
    torch.save(result, folder / "result")
    os._exit(0)  # without the farewell to a rank that is gone


if __name__ == "__main__":
    main()
