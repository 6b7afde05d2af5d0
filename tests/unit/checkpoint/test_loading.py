"""Restoring into the program's own tensors: all of it or nothing, whatever shares memory with whatever."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from job_wrapper.checkpoint import Checkpointer
from job_wrapper.checkpoint.checkpointer import PART
from job_wrapper.checkpoint.loading import read_state, usable
from job_wrapper.checkpoint.members import member
from job_wrapper.checkpoint.state import UnsupportedState, decode, encode
from job_wrapper.errors import Damaged, RestoreFailed
from tests.unit.checkpoint.training import assert_equal, open_run


class Net(nn.Module):
    """Large and small parameters, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(600, 600)
        self.small = nn.ModuleList(nn.Linear(30, 30) for _ in range(12))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def train_once(self) -> None:
        with torch.no_grad():
            for tensor in self.state_dict().values():
                tensor.add_(1)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def two_commits(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The model's state at step 1 and at step 2."""
    model, committer = Net(), open_run(folder)
    states = []
    with Checkpointer(model=model, committer=committer) as checkpoint:
        for _ in range(2):
            model.train_once()
            committer.ask(urgent=True)
            checkpoint.step()
            states.append(state_of(model))
            time.sleep(0.05)  # the kernel stamps files by a clock that ticks every 4 or 10 ms: their times differ
    return states


def newest_packs(folder: Path) -> list[Path]:
    packs = sorted(folder.rglob("*.pack"), key=lambda path: path.stat().st_mtime_ns)
    return packs[len(packs) // 2 :]


def flip(path: Path, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 16]))


def test_the_models_own_memory_is_read_into(tmp_path: Path) -> None:
    states = two_commits(tmp_path)
    model = Net()
    places = [p.data_ptr() for p in model.parameters()]
    committer = open_run(tmp_path)
    own = {f"state.model.{name}": tensor for name, tensor in model.state_dict().items()}
    point = committer.restore_point()
    assert point is not None
    before = state_of(model)
    loaded = read_state(committer.store, point.manifest, PART, own)
    tree = loaded.tree["state"]["model"]
    # (Small ones that lie in one bundle with other things of the state are read into memory of their own.)
    assert tree["large.weight"] is own["state.model.large.weight"]
    assert_equal(state_of(model), before)  # verified, and nothing set yet
    loaded.fill()
    assert torch.equal(model.large.weight, states[1]["large.weight"])
    model.load_state_dict(tree)
    assert_equal(state_of(model), states[1])
    assert [p.data_ptr() for p in model.parameters()] == places


def test_damage_anywhere_leaves_the_model_as_it_was_and_the_older_checkpoint_is_restored_whole(tmp_path: Path) -> None:
    states = two_commits(tmp_path)
    chance = random.Random(3)
    for path in newest_packs(tmp_path):
        size = path.stat().st_size
        for byte in {0, size - 1, *(chance.randrange(size) for _ in range(3))}:
            flip(path, byte)
            committer = open_run(tmp_path, f"look{byte}")  # another run: this one's log stays as it is
            model = Net()
            before = state_of(model)
            own = {f"state.model.{name}": tensor for name, tensor in model.state_dict().items()}
            newest = open_run(tmp_path).restore_point()
            assert newest is not None
            try:
                read_state(committer.store, newest.manifest, PART, own)
            except Damaged as error:
                assert path.name in str(error)
            else:
                # The byte only fills up a page: nothing is lost.
                assert byte != size - 1
            assert_equal(state_of(model), before)
            flip(path, byte)
    for path in newest_packs(tmp_path):
        flip(path, path.stat().st_size - 1)
    model = Net()
    with Checkpointer(model=model, committer=open_run(tmp_path)) as checkpoint:
        assert checkpoint.completed == 1
        assert_equal(state_of(model), states[0])


def test_what_vanishes_after_it_was_verified_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from job_wrapper.checkpoint import resume

    two_commits(tmp_path)
    fill = resume.fill

    def late(*args: Any) -> None:
        for path in newest_packs(tmp_path):
            path.write_bytes(b"")
        fill(*args)

    monkeypatch.setattr(resume, "fill", late)
    with pytest.raises(RestoreFailed, match="half of it is restored: start the program again"):
        Checkpointer(model=Net(), committer=open_run(tmp_path))


def test_what_is_not_the_same_when_it_is_read_a_second_time_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page cache may have let go of what was verified, and the disk or the server then gives other bytes."""
    from job_wrapper.checkpoint import resume

    two_commits(tmp_path)
    fill = resume.fill

    def late(*args: Any) -> None:
        for path in newest_packs(tmp_path):
            path.write_bytes(path.read_bytes().translate(bytes(255 - n for n in range(256))))
        fill(*args)

    monkeypatch.setattr(resume, "fill", late)
    with pytest.raises(RestoreFailed, match="checksum does not match"):
        Checkpointer(model=Net(), committer=open_run(tmp_path))


@pytest.mark.parametrize("size", [64, 1 << 17])
def test_a_dtype_that_torch_can_not_copy(tmp_path: Path, size: int) -> None:
    def state() -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8).view(torch.int4)

    saved = state()
    saved.view(torch.uint8).random_(generator=torch.Generator().manual_seed(1))
    with Checkpointer(mine=saved, committer=open_run(tmp_path)) as checkpoint:
        checkpoint.step()
    restored = state()
    with Checkpointer(mine=restored, committer=open_run(tmp_path)):
        assert restored.view(torch.uint8).equal(saved.view(torch.uint8))


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: torch.randn(1, 100).expand(50, 100),
            "mine: several elements of this tensor are one in memory .* copy",
        ),
        (read_only, "mine: this array is read-only"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "mine: a tensor made of nested ones"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_what_could_not_be_restored_is_refused_when_the_run_begins(
    tmp_path: Path, make: Callable[[], Any], why: str
) -> None:
    with pytest.raises(UnsupportedState, match=why):
        Checkpointer(mine=make(), committer=open_run(tmp_path))


KINDS: list[Callable[[], Any]] = [
    lambda: [1],
    lambda: {"a": 1},
    lambda: {1},
    lambda: deque([1]),
    lambda: bytearray(b"x"),
    random.Random,
    torch.Generator,
    np.random.default_rng,
    lambda: np.random.Generator(np.random.MT19937()),
    lambda: torch.zeros(1),
    lambda: nn.Linear(1, 1),
]


@pytest.mark.parametrize("now", range(len(KINDS)))
def test_state_of_another_kind_is_never_taken_for_this_one(now: int) -> None:
    for number, make in enumerate(KINDS):
        if number == now or (isinstance(make(), nn.Module | np.random.Generator) and isinstance(KINDS[now](), dict)):
            continue  # their state is a dict, too
        encoded = encode(member("mine", make()).capture())
        with pytest.raises(RestoreFailed, match=r"^mine: "):
            member("mine", KINDS[now]()).restore(decode(encoded.skeleton, encoded.tensors))


def test_an_optimizers_state_is_there_again_before_its_first_step(tmp_path: Path) -> None:
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    with Checkpointer(model=model, optimizer=optimizer, committer=open_run(tmp_path)) as checkpoint:
        model(torch.ones(300)).sum().backward()
        optimizer.step()
        checkpoint.step()
    again = nn.Linear(300, 300)
    fresh = torch.optim.AdamW(again.parameters())
    Checkpointer(model=again, optimizer=fresh, committer=open_run(tmp_path)).close()
    assert_equal(fresh.state_dict(), optimizer.state_dict())
    assert_equal(state_of(again), state_of(model))


def test_tensors_that_share_bytes_are_not_read_into() -> None:
    base = torch.zeros(1000)
    tensors = {
        "whole": base,
        "view": base[10:20],
        "apart": torch.zeros(10),
        "row": torch.zeros(4, 4).t(),
        "empty": torch.zeros(0),
        "left": torch.zeros(20)[:10],
    }
    assert set(usable(tensors)) == {"apart", "left"}
    assert set(usable({"a": base[:500], "b": base[500:]})) == {"a", "b"}


class Tied(nn.Module):
    """Two names of one memory, seen in two shapes: at the start, but no more when it is saved."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(200, 100))
        self.register_buffer("b", self.a.detach().view(-1)[:15000] if tied else torch.randn(15000))


def test_memory_that_is_shared_at_the_start_but_was_not_when_it_was_saved(tmp_path: Path) -> None:
    saved = Tied(tied=False)
    with Checkpointer(model=saved, committer=open_run(tmp_path)) as checkpoint:
        checkpoint.step()
    with Checkpointer(model=Tied(tied=False), committer=open_run(tmp_path)) as checkpoint:
        assert checkpoint.restored
    now = Tied(tied=True)
    Checkpointer(model=now, committer=open_run(tmp_path)).close()
    # As load_state_dict itself leaves it: the buffer comes last.
    expected = Tied(tied=True)
    expected.load_state_dict(saved.state_dict())
    assert_equal(state_of(now), state_of(expected))
