"""How each kind of thing that a `Checkpointer` is given is read and set: objects with a state, generators, plain values."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol

import torch

from job_wrapper.checkpoint.memory import bytes_of, is_plain
from job_wrapper.checkpoint.state import UnsupportedState
from job_wrapper.errors import BEGIN_ANEW, RestoreFailed

SCALARS = (bool, int, float, complex, str, bytes, tuple, frozenset)
"""Types whose values can't be set in place: they live in ``Checkpointer.values``."""


_OVERHEAD = 4096
"""Bytes: what a tensor takes in staging memory beyond its own."""


class Member(Protocol):
    """One named part of the state.

    ``in_place``: whether ``restore`` writes into the tensors that ``capture`` gives, so that they may as well have their values beforehand.
    """

    in_place: bool

    def capture(self) -> Any:
        """The state as a tree (``state.encode``)."""
        ...

    def restore(self, tree: Any) -> None:
        """Set it. The tree is nobody else's, and may be kept."""
        ...


def member(name: str, value: Any) -> Member:
    """The member for what was passed as ``name``. Raises ``UnsupportedState``."""
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return _Optimizer(name, value) if isinstance(value, torch.optim.Optimizer) else _Stateful(name, value)
    numpy = sys.modules.get("numpy")
    if isinstance(value, (torch.Generator, random.Random)) or (
        numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))
    ):
        return Generator(name, value)
    if isinstance(value, torch.Tensor) or (numpy is not None and isinstance(value, numpy.ndarray)):
        return _Array(name, value)
    if isinstance(value, (list, deque, MutableMapping, set, bytearray)):
        return _Container(name, value)
    raise UnsupportedState(
        f"Checkpointer({name}=…): a {type(value).__module__}.{type(value).__qualname__} has no state_dict and load_state_dict, and is no "
        "tensor, array, random generator, list, dict or plain value"
    )


def coming(members: Iterable[Member]) -> int:
    """Bytes that the state is about to grow by."""
    return sum(one.coming() for one in members if isinstance(one, _Optimizer))


class _Stateful:
    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        self.in_place = isinstance(value, (torch.nn.Module, torch.optim.Optimizer))

    def capture(self) -> Any:
        return self.value.state_dict()

    def restore(self, tree: Any) -> None:
        try:
            self.value.load_state_dict(tree)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RestoreFailed(
                f"{self.name}: the checkpoint does not fit this program's {type(self.value).__name__}: {error}\n"
                f"Use the program that the run was begun with, or {BEGIN_ANEW}"
            ) from error


class _Optimizer(_Stateful):
    def coming(self) -> int:
        """About how many bytes its state will have that it hasn't yet: most optimizers make it in their first step."""
        optimizer, defaults = self.value, self.value.defaults
        if "betas" in defaults:
            copies = 3 if defaults.get("amsgrad") else 2
        elif "alpha" in defaults and "centered" in defaults:
            copies = 1 + bool(defaults["centered"]) + bool(defaults.get("momentum"))
        else:
            copies = 1 if defaults.get("momentum") else 0
        waiting = (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
        return copies * sum(int(p.nbytes) + _OVERHEAD for p in waiting if p not in optimizer.state)

    def restore(self, tree: Any) -> None:
        super().restore(tree)
        # torch casts an optimizer's state to its parameter's dtype as it loads, so that fp32 moments of bf16 weights would lose
        # bits. Put back what was saved.
        optimizer = self.value
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        numbers = [n for group in tree["param_groups"] for n in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for key, saved in tree["state"].get(number, {}).items():
                loaded = optimizer.state[parameter].get(key)
                if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor) and loaded.dtype != saved.dtype:
                    optimizer.state[parameter][key] = saved.to(loaded.device)


class Generator:
    """A random generator of the program's own: torch's, Python's, NumPy's."""

    in_place = False

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def capture(self) -> Any:
        """Its state."""
        if isinstance(self.value, torch.Generator):
            return self.value.get_state()
        if isinstance(self.value, random.Random):
            return self.value.getstate()
        if hasattr(self.value, "bit_generator"):
            return self.value.bit_generator.state
        return self.value.get_state(legacy=False)

    def restore(self, tree: Any) -> None:
        """Set it; more than once is fine. Raises ``RestoreFailed`` for the state of another kind of generator."""
        try:
            self._set(tree)
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise _other(self.name, self.value, f"the state of another generator ({error})") from error

    def _set(self, tree: Any) -> None:
        if isinstance(self.value, torch.Generator):
            self.value.set_state(tree)
        elif isinstance(self.value, random.Random):
            self.value.setstate(tree)
        elif hasattr(self.value, "bit_generator"):
            self.value.bit_generator.state = tree
        else:
            self.value.set_state(tree)


class _Array:
    in_place = True

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        problem = _unwritable(value)
        if problem:
            raise UnsupportedState(
                f"{name}: {problem}, so a restore could not write into it; give a copy of it, or what it was made of"
            )

    def capture(self) -> Any:
        return self.value

    def restore(self, tree: Any) -> None:
        if isinstance(tree, torch.Tensor) is not isinstance(self.value, torch.Tensor) or not hasattr(tree, "dtype"):
            raise _other(self.name, self.value, f"a {type(tree).__name__}")
        stored = (str(tree.dtype), tuple(tree.shape))
        mine = (str(self.value.dtype), tuple(self.value.shape))
        if stored != mine:
            raise RestoreFailed(
                f"{self.name}: is {mine[0]} of shape {mine[1]}, but {stored[0]} of shape {stored[1]} in the checkpoint; "
                "an array keeps its shape over a run (what grows goes into a list)"
            )
        if tree is self.value:
            return  # read in place
        if isinstance(self.value, torch.Tensor):
            with torch.no_grad():
                if is_plain(self.value) and is_plain(tree):
                    bytes_of(self.value).copy_(bytes_of(tree))
                else:
                    self.value.copy_(tree)
        else:
            self.value[...] = tree


def _unwritable(value: Any) -> str:
    """Why a restore could not write into a tensor or an array: it is to be said when the run begins. Pure."""
    if not isinstance(value, torch.Tensor):
        return "" if value.flags.writeable else "this array is read-only"
    if value.is_nested or value.layout is not torch.strided:
        return ""  # encoding it says more
    if any(size > 1 and not stride for size, stride in zip(value.shape, value.stride(), strict=True)):
        return "several elements of this tensor are one in memory (expand() makes such)"
    return ""


class _Container:
    in_place = False  # what is in it is replaced, and may belong to somebody else as well

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def capture(self) -> Any:
        return self.value

    def restore(self, tree: Any) -> None:
        if _kind(tree) is not _kind(self.value):
            raise _other(self.name, self.value, f"a {type(tree).__name__}")
        tree = _placed(self.value, tree, {})
        if isinstance(self.value, (list, bytearray)):
            self.value[:] = tree
        else:
            self.value.clear()
            (self.value.extend if isinstance(self.value, deque) else self.value.update)(tree)


_KINDS = (list, deque, set, bytearray, MutableMapping)


def _kind(value: Any) -> type | None:
    return next((kind for kind in _KINDS if isinstance(value, kind)), None)


def _other(name: str, value: Any, saved: str) -> RestoreFailed:
    return RestoreFailed(
        f"{name}: is a {type(value).__name__}, but {saved} in the checkpoint. Use the program that the run was begun with, "
        f"or {BEGIN_ANEW}"
    )


def _placed(now: Any, saved: Any, moved: dict[int, torch.Tensor]) -> Any:
    """``saved``, but its tensors are on the devices of those that the program has at the same places (averaged weights, say)."""
    if isinstance(saved, torch.Tensor) and isinstance(now, torch.Tensor):
        if saved.device != now.device and id(saved) not in moved:
            moved[id(saved)] = saved.to(now.device)
        return moved.get(id(saved), saved)
    if isinstance(saved, dict) and isinstance(now, MutableMapping):
        for key in saved.keys() & now.keys():
            saved[key] = _placed(now[key], saved[key], moved)
    elif isinstance(saved, (list, deque)) and isinstance(now, (list, deque)):
        for index, one in zip(range(len(saved)), now, strict=False):
            saved[index] = _placed(one, saved[index], moved)
    return saved
