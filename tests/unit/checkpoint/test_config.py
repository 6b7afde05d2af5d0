"""The configuration at a resume."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from collections import UserList
from pathlib import Path
from typing import Any

import pydantic
import pytest

from job_wrapper.checkpoint import Checkpointer, UnsupportedState
from job_wrapper.checkpoint.config import ALLOW_VARIABLE, check, flatten
from job_wrapper.errors import ConfigChanged
from tests.unit.checkpoint.training import open_run


@dataclasses.dataclass
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)


class Mode(enum.Enum):
    FAST = 1


def test_all_kinds_of_configuration_are_flattened() -> None:
    expected = {
        "optimizer.lr": 0.1,
        "optimizer.betas": [0.9, 0.95],
        "mode": "Mode.FAST",
        "data": "/d",
        "x[0].y": 1,
        "x[1]": 2,
    }
    values = {"optimizer": Optimizer(), "mode": Mode.FAST, "data": Path("/d"), "x": [{"y": 1}, 2]}
    assert flatten(values) == flatten(argparse.Namespace(**values)) == expected


@pytest.mark.parametrize("config", [{"f": print}, {"a": [object()]}, [1, 2], 3])
def test_what_cannot_be_compared_is_refused(config: Any) -> None:
    with pytest.raises(UnsupportedState, match="config"):
        flatten(config)


def run(folder: Path, config: Any, **options: Any) -> Checkpointer:
    checkpoint = Checkpointer(config=config, committer=open_run(folder), **options)
    with checkpoint:
        checkpoint.step()
    return checkpoint


def test_a_changed_value_is_refused_with_the_difference(tmp_path: Path) -> None:
    run(tmp_path, {"lr": 0.1, "optimizer": {"wd": 0.0}, "same": float("nan"), "gone": 1})
    with pytest.raises(ConfigChanged) as caught:
        run(tmp_path, {"lr": 0.2, "optimizer": {"wd": 0.01}, "same": float("nan"), "new": "x"})
    assert str(caught.value).splitlines()[1:5] == [
        "  gone: 1 in the checkpoint, absent now",
        "  lr: 0.1 in the checkpoint, 0.2 now",
        "  new: absent in the checkpoint, 'x' now",
        "  optimizer.wd: 0.0 in the checkpoint, 0.01 now",
    ]
    assert f"{ALLOW_VARIABLE}=gone,lr,new,optimizer.wd" in str(caught.value)


def test_an_allowed_change_goes_on_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, {"lr": 0.1, "optimizer": {"wd": 0.0}})
    checkpoint = run(tmp_path, {"lr": 0.2, "optimizer": {"wd": 0.0}}, allow_config_change=["lr"])
    assert (checkpoint.completed, checkpoint.changed) == (2, {"lr": (0.1, 0.2)})
    monkeypatch.setenv(ALLOW_VARIABLE, "other, optimizer")
    checkpoint = run(tmp_path, {"lr": 0.2, "optimizer": {"wd": 0.5}})
    assert (checkpoint.completed, checkpoint.changed) == (3, {"optimizer.wd": (0.0, 0.5)})


def test_leaving_the_configuration_out_is_a_change(tmp_path: Path) -> None:
    run(tmp_path, {"lr": 0.1})
    with pytest.raises(ConfigChanged, match=r"lr: 0\.1 in the checkpoint, absent now"):
        run(tmp_path, None)


@dataclasses.dataclass
class Model:
    layers: list[dict[str, int]]
    optimizer: Optimizer
    tags: set[str] = dataclasses.field(default_factory=set)


def test_the_difference_of_nested_things_is_readable(tmp_path: Path) -> None:
    run(tmp_path, Model([{"width": 4}, {"width": 8}], Optimizer(), {"b", "a"}))
    with pytest.raises(ConfigChanged) as caught:
        run(tmp_path, Model([{"width": 4}, {"width": 16}, {"width": 2}], Optimizer("0.1", (0.9, 0.99)), {"a"}))  # type: ignore[arg-type]
    assert str(caught.value).splitlines()[1:-1] == [
        "  layers[1].width: 8 in the checkpoint, 16 now",
        "  layers[2].width: absent in the checkpoint, 2 now",
        "  optimizer.betas: [0.9, 0.95] in the checkpoint, [0.9, 0.99] now",
        "  optimizer.lr: 0.1 in the checkpoint, '0.1' now",
        "  tags: ['a', 'b'] in the checkpoint, ['a'] now",
    ]
    allowed = ["layers", "optimizer", "tags"]
    changed = run(tmp_path, Model([{"width": 4}], Optimizer(0.5), set()), allow_config_change=allowed).changed
    assert changed["layers[1].width"] == (8, None)


def test_a_pydantic_model_and_other_sequences() -> None:
    class Settings(pydantic.BaseModel):
        lr: float = 0.1
        layers: list[int] = [1, 2]

    assert flatten(Settings()) == {"lr": 0.1, "layers": [1, 2]}
    assert flatten({"x": UserList([1, 2]), "y": range(3)}) == {"x": [1, 2], "y": [0, 1, 2]}


def test_truth_is_no_number_and_one_is_one() -> None:
    assert check({"a": 1}, {"a": 1.0}, (), "x") == {}
    with pytest.raises(ConfigChanged, match="a: True in the checkpoint, 1 now"):
        check({"a": True}, {"a": 1}, (), "x")


def test_other_parts_of_state_are_refused(tmp_path: Path) -> None:
    with Checkpointer(log=[1], committer=open_run(tmp_path)) as checkpoint:
        checkpoint.step()
    with pytest.raises(ConfigChanged) as caught:
        Checkpointer(table={}, committer=open_run(tmp_path))
    assert "  log: in the checkpoint, not given now" in str(caught.value)
    assert "  table: not in the checkpoint, given now" in str(caught.value)
    log: list[int] = []
    with Checkpointer(log=log, table={"a": 1}, committer=open_run(tmp_path), allow_config_change=["table"]):
        assert log == [1]
