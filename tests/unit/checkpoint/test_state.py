"""State trees: into a real store and out again, to the last bit; or refused by name."""

from __future__ import annotations

import contextlib
import enum
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from job_wrapper.checkpoint import Checkpointer, UnsupportedState
from job_wrapper.checkpoint.state import decode, encode, parse
from job_wrapper.errors import Damaged, NewerFormat, RestoreFailed
from job_wrapper.store import read_manifest, read_part
from tests.unit.checkpoint.training import assert_equal, open_run


class Box:
    """Something with a state."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def state_dict(self) -> Any:
        return self.tree

    def load_state_dict(self, tree: Any) -> None:
        self.tree = tree


def through_store(folder: Path, tree: Any) -> Any:
    with Checkpointer(box=Box(tree), committer=open_run(folder)) as checkpoint:
        checkpoint.step()
    box = Box(None)
    with Checkpointer(box=box, committer=open_run(folder)) as checkpoint:
        assert checkpoint.restored
        assert checkpoint.completed == 1
    return box.tree


def through_json(tree: Any) -> Any:
    encoded = encode(tree)
    return decode(parse(encoded.to_json()), encoded.tensors)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
keys = (
    st.text()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.none()
    | st.booleans()
    | st.tuples(st.integers(), st.text())
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict)
        | st.lists(inner, max_size=3).map(lambda v: deque(v, maxlen=5))
    ),
    max_leaves=20,
)


@given(trees)
def test_plain_trees_come_back_as_they_were(tree: Any) -> None:
    assert_equal(through_json(tree), tree)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        -math.nan,
        math.inf,
        -math.inf,
        -0.0,
        5e-324,
        1 << 5000,
        -(1 << 63),
        0.1 + 0.2,
        {1: {"1": 2}},
        {"tensor": "x"},
    ],
    ids=str,
)
def test_awkward_values(value: Any) -> None:
    assert_equal(through_json([value]), [value])


def test_rare_containers() -> None:
    tree = {
        "counter": Counter({3: 2}),
        "default": defaultdict(list, {"a": [1]}),
        "sets": [{1, 2}, frozenset({"a"})],
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "bytes": [b"\0\xff", bytearray(b"x")],
    }
    back = through_json(tree)
    assert_equal(back, tree)
    assert back["default"]["new"] == []


DTYPES = sorted(
    {
        d
        for d in vars(torch).values()
        if isinstance(d, torch.dtype) and not str(d).startswith(("torch.q", "torch.bits"))
    },
    key=str,
)


def random_bytes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = math.prod(shape) * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    return torch.randint(0, high, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def test_every_dtype_and_shape(tmp_path: Path) -> None:
    tree: dict[str, Any] = {}
    for dtype in DTYPES:
        tree[f"{dtype}"] = {
            "matrix": random_bytes(dtype, 3, 5),
            "0-d": random_bytes(dtype, 1).reshape(()),
            "empty": torch.empty(0, 3, dtype=dtype),
        }
    assert len(tree) > 20
    dense = random_bytes(torch.float32, 6, 4)
    tree["strided"] = {
        "transposed": dense.t(), "every other": dense[::2], "expanded": dense[:1].expand(5, 4), "inside": dense[1:3, 1:3],
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugated": torch.randn(3, 2, dtype=torch.complex64).conj(), "negated": torch.randn(3, dtype=torch.complex64).conj().imag,
    }  # fmt: skip
    assert_equal(through_store(tmp_path, tree), tree)


def test_arrays_and_numbers_of_numpy(tmp_path: Path) -> None:
    tree = {
        "arrays": [
            np.arange(6).reshape(2, 3)[:, ::2],
            np.zeros((0, 2)),
            np.array(3.5),
            np.array(["ab", "c"]),
            np.array(True),
        ],
        "big endian": np.arange(3, dtype=">i4"),
        "times": np.array(["2026-01-01"], dtype="datetime64[ns]"),
        "numbers": [np.float32(0.1), np.float64(0.1), np.int64(-1), np.bool_(True)],
    }
    readonly = np.arange(3)
    readonly.flags.writeable = False
    tree["readonly"] = readonly
    assert_equal(through_store(tmp_path, tree), tree)


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 16)
            self.output = nn.Linear(16, 1000, bias=False)
            self.output.weight = self.embedding.weight

    saved, committer = Tied(), open_run(tmp_path)
    with Checkpointer(model=saved, committer=committer) as checkpoint:
        checkpoint.step()
    manifest = read_manifest(committer.store, committer._claim.entry.summary.commits[-1].manifest)
    part = read_part(committer.store, manifest.parts["rank-0"])
    assert sum(item.length for item in part.items if item.attributes.get("shape") == [1000, 16]) == 64000

    loaded = Tied()
    with Checkpointer(model=loaded, committer=open_run(tmp_path)):
        assert torch.equal(loaded.embedding.weight, saved.embedding.weight)
        assert loaded.output.weight is loaded.embedding.weight


def test_optimizer_state_keeps_its_dtype(tmp_path: Path) -> None:
    """fp32 moments of bf16 weights: torch's own load_state_dict would round them."""

    def make() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(8).bfloat16())
        return weight, torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    weight, optimizer = make()
    optimizer.state[weight]["momentum_buffer"] = torch.randn(8)
    with Checkpointer(optimizer=optimizer, committer=open_run(tmp_path)) as checkpoint:
        checkpoint.step()
    other, second = make()
    with Checkpointer(optimizer=second, committer=open_run(tmp_path)):
        assert_equal(second.state[other]["momentum_buffer"], optimizer.state[weight]["momentum_buffer"])


def test_values_lists_tensors_and_generators_are_set_in_place(tmp_path: Path) -> None:
    def make(fill: int) -> dict[str, Any]:
        return {
            "best": float(fill), "history": [fill], "table": {"a": fill}, "tensor": torch.full((2,), fill),
            "array": np.full(2, fill), "queue": deque([fill], maxlen=3), "seen": {fill},
            "generator": torch.Generator().manual_seed(fill), "numpy": np.random.default_rng(fill),
        }  # fmt: skip

    first = make(1)
    with Checkpointer(**first, nothing=None, committer=open_run(tmp_path)) as checkpoint:
        checkpoint.values["best"] = 7.5
        first["history"].append(2)
        checkpoint.step()
    second = make(9)
    names = {name: id(value) for name, value in second.items()}
    with Checkpointer(**second, committer=open_run(tmp_path)) as checkpoint:
        assert checkpoint.values == {"best": 7.5}
    assert {name: id(value) for name, value in second.items()} == names
    plain = ("history", "table", "tensor", "array", "queue", "seen")
    assert_equal({n: second[n] for n in plain}, {n: first[n] for n in plain})
    assert torch.rand(3, generator=second["generator"]).equal(torch.rand(3, generator=first["generator"]))
    assert second["numpy"].random() == first["numpy"].random()


def test_a_loaded_state_is_not_the_staging_memory(tmp_path: Path) -> None:
    """load_state_dict may keep the tensors it is given: a later save must not write into them."""
    with Checkpointer(box=Box({"x": torch.ones(1000)}), committer=open_run(tmp_path)) as checkpoint:
        checkpoint.step()
    box, other, committer = Box(None), torch.zeros(1000), open_run(tmp_path)
    with Checkpointer(box=box, committer=committer, other=other, allow_config_change=["other"]) as checkpoint:
        kept = box.tree["x"]
        box.tree = {"x": torch.full((1000,), 2.0)}
        committer.ask(urgent=True)
        checkpoint.step()
        assert kept.eq(1).all()


class Color(enum.Enum):
    RED = 1


circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"a": [1, {"b": object()}]}, r"state\.box\.a\[1\]\.b: a value of type builtins\.object"),
        ({"f": lambda: 0}, r"state\.box\.f"),
        ({"c": Color.RED}, r"state\.box\.c"),
        ({"x": circle}, "refers to itself"),
        ({"s": torch.eye(3).to_sparse()}, r"state\.box\.s: a tensor with layout sparse"),
        ({"m": torch.empty(3, device="meta")}, r"state\.box\.m: a tensor on the meta device"),
        ({"o": np.array([object()])}, r"state\.box\.o"),
        ({Color.RED: 1}, "a key of type Color"),
    ],
)
def test_what_cannot_be_saved_is_named_at_construction(tmp_path: Path, tree: Any, path: str) -> None:
    with pytest.raises(UnsupportedState, match=path):
        Checkpointer(box=Box(tree), committer=open_run(tmp_path))


def test_an_object_without_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedState, match=r"Checkpointer\(loader=…\)"):
        Checkpointer(loader=object(), committer=open_run(tmp_path))


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (b"{", Damaged),
        (b"\xff", Damaged),
        (b"[" * 100000, Damaged),
        (b'{"map":[1]}', Damaged),
        (b"{}", Damaged),
        (b'{"tensor":"absent"}', Damaged),
        (b'{"float":"zz"}', Damaged),
        (b'{"npscalar":"00","dtype":"O"}', Damaged),
        (b'{"defaultdict":{"map":{}},"factory":"eval"}', Damaged),
        (b'{"from-the-future":1}', NewerFormat),
        (b'{"dtype":"nn"}', NewerFormat),
    ],
)
def test_a_foreign_skeleton_is_refused(stored: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode(parse(stored), {})


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i), max_leaves=15
    )
)
def test_any_json_is_read_or_refused(value: Any) -> None:
    with contextlib.suppress(Damaged):
        decode(parse(json.dumps(value).encode()), {})


def test_a_model_that_does_not_fit_is_told_so(tmp_path: Path) -> None:
    with Checkpointer(model=nn.Linear(2, 3), committer=open_run(tmp_path)) as checkpoint:
        checkpoint.step()
    with pytest.raises(RestoreFailed, match=r"model: the checkpoint does not fit this program's Linear"):
        Checkpointer(model=nn.Linear(2, 4), committer=open_run(tmp_path))


def make_optimizers() -> dict[str, Any]:
    def weight() -> list[nn.Parameter]:
        return [nn.Parameter(torch.randn(3, 2))]

    names = ("SGD", "Adam", "AdamW", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "LBFGS", "Adafactor")
    made: dict[str, Any] = {name: getattr(torch.optim, name)(weight(), lr=0.1) for name in names}
    schedulers = torch.optim.lr_scheduler
    kinds: dict[str, Any] = {
        "step": lambda o: schedulers.StepLR(o, 2),
        "multi": lambda o: schedulers.MultiStepLR(o, [1, 3]),
        "lambda": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.5**epoch),
        "cosine": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2),
        "one cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=9),
        "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1),
        "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
        "sequential": lambda o: schedulers.SequentialLR(o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [2]),
        "chained": lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)]),
    }  # fmt: skip
    for name, make in kinds.items():
        optimizer = torch.optim.SGD(weight(), lr=0.1, momentum=0.9)
        made[f"optimizer of {name}"], made[name] = optimizer, make(optimizer)
    made["scaler"] = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    return made


def step_all(made: dict[str, Any]) -> None:
    for one in made.values():
        if isinstance(one, torch.optim.Optimizer):
            weight = one.param_groups[0]["params"][0]
            one.zero_grad()
            loss = made["scaler"].scale(weight.square().sum())
            loss.backward()
            one.step(lambda loss=loss: loss)
        elif isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
            one.step(1.0)
        elif not isinstance(one, torch.amp.GradScaler):
            one.step()
    made["scaler"].update(4.0)


def test_all_of_torchs_optimizers_and_schedulers(tmp_path: Path) -> None:
    """And they step on alike."""

    def weights(made: dict[str, Any]) -> list[torch.Tensor]:
        optimizers = [one for one in made.values() if isinstance(one, torch.optim.Optimizer)]
        return [one.param_groups[0]["params"][0].detach() for one in optimizers]

    first = make_optimizers()
    names = {f"w{n}": weight for n, weight in enumerate(weights(first))}
    with Checkpointer(
        **{k.replace(" ", "_"): v for k, v in first.items()}, **names, committer=open_run(tmp_path)
    ) as checkpoint:
        for _ in range(3):
            step_all(first)
            checkpoint.step()
    second = make_optimizers()
    names = {f"w{n}": weight for n, weight in enumerate(weights(second))}
    with Checkpointer(
        **{k.replace(" ", "_"): v for k, v in second.items()}, **names, committer=open_run(tmp_path)
    ) as checkpoint:
        assert checkpoint.completed == 3
    for _ in range(3):
        step_all(first)
        step_all(second)
    assert_equal(weights(second), weights(first))
    for name, one in first.items():
        assert_equal(second[name].state_dict(), one.state_dict(), name)
