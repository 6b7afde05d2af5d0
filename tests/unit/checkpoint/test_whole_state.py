"""Optimizers, schedulers, scalers, averages, generators, compiled models: each goes on as if it never had stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import SWALR, AveragedModel

from job_wrapper.checkpoint import Checkpointer, DirectCommitter
from job_wrapper.errors import RestoreFailed
from tests.unit.checkpoint.training import assert_equal, open_run

STEPS, STOP = 8, 3
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.1, centered=True),
    "groups": lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.1}, {"params": p[1:], "weight_decay": 0.3}], 0.01),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "plateau": lambda o: lr.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "one cycle": lambda o: lr.OneCycleLR(o, 0.1, total_steps=STEPS + 1),
    "sequential": lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o, 0.1, total_iters=3), lr.CosineAnnealingLR(o, 6)], milestones=[4]
    ),
    "chained": lambda o: lr.ChainedScheduler([lr.ConstantLR(o, 0.5, 4), lr.ExponentialLR(o, 0.9)]),
    "lambda": lambda o: lr.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cyclic": lambda o: lr.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
    "swa": lambda o: SWALR(o, swa_lr=0.05, anneal_epochs=4),
}


def same(make: Callable[[], dict[str, Any]], step: Callable[[dict[str, Any]], Any], folder: Path) -> dict[str, Any]:
    """Runs it undisturbed, and stopped; what it has in the end is the same. ``make`` gives the state, ``step`` changes it."""

    def attempt(committer: DirectCommitter | None, stop: int = 0) -> dict[str, Any]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        state = make()
        log: list[Any] = []
        try:
            with Checkpointer(**state, log=log, data=False, committer=committer) as checkpoint:
                while checkpoint.completed < STEPS:
                    log.append(step(state))
                    if committer is not None and checkpoint.completed + 1 == stop:
                        committer.ask(urgent=True, stop=True)
                    checkpoint.step()
        except SystemExit:
            assert len(log) == stop
        generators = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
        left = {k: v for k, v in state.items() if not isinstance(v, generators)}
        return {"log": log} | {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in left.items()}

    undisturbed = attempt(None)
    attempt(open_run(folder), STOP)
    ended = attempt(open_run(folder))
    assert_equal(ended, undisturbed)
    return ended


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1)
    )


def backward(model: torch.nn.Module) -> float:
    loss = model(torch.rand(6, 3)).square().mean()
    loss.backward()
    return loss.item()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(tmp_path: Path, kind: str) -> None:
    def make() -> dict[str, Any]:
        model = network()
        return {"model": model, "optimizer": OPTIMIZERS[kind](list(model.parameters()))}

    def step(state: dict[str, Any]) -> Any:
        state["optimizer"].zero_grad()
        loss = backward(state["model"])
        state["optimizer"].step()
        state["optimizer"].param_groups[0]["lr"] *= 0.9  # a program may change its groups
        return loss

    same(make, step, tmp_path)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers(tmp_path: Path, kind: str) -> None:
    def make() -> dict[str, Any]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return {"model": model, "optimizer": optimizer, "scheduler": SCHEDULERS[kind](optimizer)}

    def step(state: dict[str, Any]) -> Any:
        state["optimizer"].zero_grad()
        loss = backward(state["model"])
        state["optimizer"].step()
        state["scheduler"].step(*([loss] if kind == "plateau" else []))
        return loss, state["optimizer"].param_groups[0]["lr"]

    same(make, step, tmp_path)


@pytest.mark.filterwarnings("ignore:.*GradScaler")
@pytest.mark.parametrize(
    "scaler",
    [lambda: torch.amp.GradScaler("cpu", growth_interval=2), lambda: torch.amp.GradScaler("cuda", enabled=False)],
)
def test_two_optimizers_with_amp_and_averages(tmp_path: Path, scaler: Callable[[], Any]) -> None:
    def make() -> dict[str, Any]:
        one, two = network(), torch.nn.Linear(3, 1)
        return {
            "one": one,
            "two": two,
            "adam": torch.optim.AdamW(one.parameters(), 0.01),
            "sgd": torch.optim.SGD(two.parameters(), 0.1, momentum=0.9),
            "scaler": scaler(),
            "average": AveragedModel(one),
            "shadow": {name: value.detach().clone() for name, value in two.named_parameters()},
            "counts": np.zeros(3, dtype=np.int16),
        }

    def step(state: dict[str, Any]) -> Any:
        adam, sgd, scaler = state["adam"], state["sgd"], state["scaler"]
        adam.zero_grad()
        sgd.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = torch.rand(6, 3)
            loss = (state["one"](x) - state["two"](x)).float().square().mean()
        scaler.scale(loss).backward()
        for optimizer in (adam, sgd):
            scaler.step(optimizer)
        scaler.update()
        state["average"].update_parameters(state["one"])
        for name, value in state["two"].named_parameters():
            state["shadow"][name].lerp_(value.detach(), 0.1)
        state["counts"][1] += 1
        return loss.item()

    assert same(make, step, tmp_path)["counts"][1] == STEPS


def test_all_random_generators(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        return {
            "torch_": torch.Generator().manual_seed(5),
            "python": random.Random(5),
            "pcg": np.random.default_rng(5),
            "sfc": np.random.Generator(np.random.SFC64(5)),
            "older": np.random.RandomState(5),
        }

    def step(state: dict[str, Any]) -> Any:
        mine = (
            torch.rand(1, generator=state["torch_"]).item(),
            state["python"].gauss(0, 1),
            float(state["pcg"].normal()),
        )
        mine += (int(state["sfc"].integers(99)), float(state["older"].normal()))
        return mine, torch.rand(()).item(), random.gauss(0, 1), float(np.random.normal())

    same(make, step, tmp_path)


def test_a_compiled_model(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        model = torch.compile(network(), backend="eager")
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), 0.01)}

    def step(state: dict[str, Any]) -> Any:
        state["optimizer"].zero_grad()
        loss = backward(state["model"])
        state["optimizer"].step()
        return loss

    same(make, step, tmp_path)


def test_groups_that_are_not_made_yet_are_named(tmp_path: Path) -> None:
    def attempt(groups: int) -> None:
        layers = [torch.nn.Linear(2, 2) for _ in range(2)]
        optimizer = torch.optim.AdamW([{"params": layer.parameters()} for layer in layers[:groups]])
        with Checkpointer(optimizer=optimizer, data=False, committer=open_run(tmp_path)) as checkpoint:
            checkpoint.step()

    attempt(2)
    with pytest.raises(
        RestoreFailed, match=r"optimizer: the checkpoint does not fit this program's AdamW.*parameter groups"
    ):
        attempt(1)


def test_the_trackers_id_is_the_same_also_when_the_first_attempt_died_before_a_commit(tmp_path: Path) -> None:
    ids = {Checkpointer(data=False, committer=open_run(tmp_path)).tracker_id() for _ in range(2)}
    with Checkpointer(data=False, committer=open_run(tmp_path)) as checkpoint:
        checkpoint.step()
        ids.add(checkpoint.tracker_id())
    ids.add(Checkpointer(data=False, committer=open_run(tmp_path)).tracker_id())
    assert len(ids) == 1
    assert Checkpointer(data=False, committer=open_run(tmp_path, "other")).tracker_id() not in ids
