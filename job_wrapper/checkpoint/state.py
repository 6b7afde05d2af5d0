"""A program's state as a tree that JSON can hold, and the tensors beside it. No pickle, neither written nor read.

The skeleton is plain JSON: None, bool, int, finite float, str and list stand for themselves, and everything else is an object with
one key that names its type. A dict of the program is therefore never a bare JSON object, and no key of it can be mistaken for
a type. Floats keep their bits (``repr`` is exact; what JSON has no word for is written in hex). Decoding calls no code that the
stored data names.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch

from job_wrapper.errors import CheckpointFailed, Damaged, NewerFormat

MAX_DEPTH = 200
"""Deepest nesting of containers; deeper state most likely refers to itself."""

_BIG = 1 << 63
_FACTORIES: dict[str, Callable[[], Any]] = {
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "set": set,
    "str": str,
}
_NUMPY_KINDS = "biufcSUmM"
_MANY = 8
_KEYS = {str}
_TENSORS = {torch.Tensor, torch.nn.Parameter}
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_DTYPE, _LENGTH, _IS_CPU, _IS_NESTED = map(attrgetter, ("dtype", "nbytes", "is_cpu", "is_nested"))
_NEAR = 2048
"""So many tensors are looked at in several ways, one after the other, while what they are made of is in the processor's cache."""


class UnsupportedState(CheckpointFailed):
    """Part of the program's state can't be put into a checkpoint; the message names it by its path."""

    reason = "UnsupportedState"


@dataclass(frozen=True, slots=True)
class Encoded:
    """``skeleton`` can be dumped as JSON and shares nothing mutable with the state; ``tensors`` are the live ones, by item name."""

    skeleton: Any
    tensors: dict[str, torch.Tensor]
    lengths: list[int] = field(default_factory=list)
    """Bytes of each tensor, in order."""
    devices: set[torch.device] = field(default_factory=set)
    """All but the processor that tensors are on."""

    def to_json(self) -> bytes:
        """The skeleton as it is stored."""
        return json.dumps(self.skeleton, separators=(",", ":"), allow_nan=False).encode()


def encode(tree: Any) -> Encoded:
    """Take a state tree apart. Nothing is copied: tensors are referred to, and must be copied before they change.

    Raises ``UnsupportedState`` that names the path of what isn't representable.
    """
    encoder = _Encoder()
    return Encoded(encoder.encode(tree, "", 0), encoder.tensors, encoder.lengths, encoder.devices)


def decode(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put a state tree together again. What was one tensor in two places is one tensor in two places again.

    Raises ``Damaged`` for a skeleton that ``encode`` can't have made.
    """
    try:
        return _decode(skeleton, tensors)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RuntimeError,
        RecursionError,
        StopIteration,
        struct.error,
    ) as error:
        raise Damaged(f"the checkpoint's state can't be read: {type(error).__name__}: {error}") from error


def parse(data: bytes | bytearray | memoryview) -> Any:
    """The stored skeleton; raises ``Damaged``."""
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the checkpoint's state is not JSON: {error}") from error


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"``, as manifests hold it."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name. Raises ``NewerFormat`` for one that this torch doesn't have."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise NewerFormat(
            f"the checkpoint holds a tensor of dtype {name!r}, which torch {torch.__version__} doesn't know"
        )
    return dtype


def _where(path: str) -> str:
    return path or "the state"


@dataclass(slots=True)
class _Encoder:
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    devices: set[torch.device] = field(default_factory=set)
    seen: dict[int, str | list[str]] = field(default_factory=dict)
    """Names of tensors by address."""

    def encode(self, value: Any, path: str, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str:
            return value
        if kind is int:
            return value if -_BIG <= value < _BIG else {"int": hex(value)}
        if kind is float:
            return value if value - value == 0.0 else {"float": struct.pack(">d", value).hex()}
        if isinstance(value, torch.Tensor):
            return {"tensor": self.tensor(value, path)}
        if depth > MAX_DEPTH:
            raise UnsupportedState(f"{_where(path)[:200]}: nested deeper than {MAX_DEPTH}, or refers to itself")
        deeper = depth + 1
        if kind is list:
            return [self.encode(v, f"{path}[{i}]", deeper) for i, v in enumerate(value)]
        if kind is dict:
            return self.mapping(value, path, deeper)
        return self.rare(value, kind, path, deeper)

    def mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        dot = f"{path}." if path else ""
        if _KEYS.issuperset(map(type, value)):
            if len(value) >= _MANY and self.many(value, dot):
                return {"tensors": list(value), "under": dot}
            # Tensors here and not by way of ``encode``: a state may have very many.
            return {
                "map": {
                    k: {"tensor": self.tensor(v, dot + k)}
                    if type(v) is torch.Tensor
                    else self.encode(v, dot + k, depth)
                    for k, v in value.items()
                }
            }
        pairs = []
        for key, v in value.items():
            if not isinstance(key, (str, int, float, bool, bytes, tuple, type(None))):
                raise UnsupportedState(
                    f"{_where(path)}: a key of type {type(key).__name__} can't be put into a checkpoint"
                )
            pairs.append([self.encode(key, f"{dot}(key)", depth), self.encode(v, f"{dot}{key!r}", depth)])
        return {"dict": pairs}

    def many(self, value: Mapping[str, Any], dot: str) -> bool:
        """Note a mapping of tensors alone that no other name refers to, all at once: a state may have very many. False if it is none."""
        found = list(value.values())
        if not _TENSORS.issuperset(map(type, found)):
            return False
        addresses: list[int] = []
        lengths: list[int] = []
        devices: set[torch.device] = set()
        for at in range(0, len(found), _NEAR):
            near = found[at : at + _NEAR]
            try:
                addresses += map(torch.Tensor.data_ptr, near)  # 0 where there is no content, as on the meta device
            except RuntimeError:  # of another layout than strided
                return False
            if any(map(_IS_NESTED, near)) or not _QUANTIZED.isdisjoint(map(_DTYPE, near)):
                return False
            lengths += map(_LENGTH, near)
            if not all(map(_IS_CPU, near)):
                devices.update(tensor.device for tensor in near if not tensor.is_cpu)
        names = [dot + key for key in value]
        seen, tensors = dict(zip(addresses, names, strict=True)), dict(zip(names, found, strict=True))
        if any(device.type == "meta" for device in devices):  # a view of such a one has an address
            return False
        if len(seen) != len(found) or 0 in seen or not self.seen.keys().isdisjoint(seen):
            return False
        if not self.tensors.keys().isdisjoint(tensors):
            return False
        self.tensors.update(tensors)
        self.seen.update(seen)
        self.lengths += lengths
        self.devices |= devices
        return True

    def sequence(self, value: Any, path: str, depth: int) -> list[Any]:
        return [self.encode(v, f"{path}[{i}]", depth) for i, v in enumerate(value)]

    def rare(self, value: Any, kind: type, path: str, depth: int) -> Any:
        if kind is tuple:
            return {"tuple": self.sequence(value, path, depth)}
        if kind is torch.Size:
            return {"size": [int(n) for n in value]}
        if kind is OrderedDict:
            # nn.Module's state_dict carries the versions of its modules in an attribute; load_state_dict looks at it.
            metadata = getattr(value, "_metadata", None)
            return {
                "odict": self.mapping(value, path, depth),
                "metadata": None if metadata is None else self.encode(dict(metadata), f"{path}._metadata", depth),
            }
        if kind is Counter:
            return {"counter": self.mapping(value, path, depth)}
        if kind is defaultdict:
            name = getattr(value.default_factory, "__name__", None)
            if value.default_factory is None or _FACTORIES.get(str(name)) is value.default_factory:
                return {"defaultdict": self.mapping(value, path, depth), "factory": name}
        if kind is deque:
            return {"deque": self.sequence(value, path, depth), "maxlen": value.maxlen}
        if kind in (set, frozenset):
            return {kind.__name__: self.sequence(sorted(value, key=repr), path, depth)}
        if kind in (bytes, bytearray):
            return {kind.__name__: base64.b64encode(value).decode()}
        if kind is complex:
            return {"complex": struct.pack(">dd", value.real, value.imag).hex()}
        if kind is torch.dtype:
            return {"dtype": dtype_name(value)}
        if kind is torch.device:
            return {"device": str(value)}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if kind is numpy.ndarray and value.dtype.kind in _NUMPY_KINDS:
                return {"ndarray": self.array(value, path, numpy), "dtype": value.dtype.str, "shape": list(value.shape)}
            if isinstance(value, numpy.generic) and value.dtype.kind in _NUMPY_KINDS:
                return {"npscalar": value.tobytes().hex(), "dtype": value.dtype.str}
        raise UnsupportedState(
            f"{_where(path)}: a value of type {kind.__module__}.{kind.__qualname__} can't be put into a checkpoint; "
            "hold it as numbers, strings, tensors, or lists, tuples and dicts of them"
        )

    def array(self, value: Any, path: str, numpy: Any) -> str:
        flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
        return self.tensor(torch.from_numpy(flat if flat.flags.writeable else flat.copy()), path)

    def tensor(self, value: torch.Tensor, path: str) -> str:
        kind = type(value)
        problem = ""
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            problem = f"of type {kind.__module__}.{kind.__qualname__}"
        elif value.is_nested:
            problem = "made of nested ones"
        elif value.layout is not torch.strided:
            problem = f"with layout {str(value.layout).removeprefix('torch.')}"
        elif value.is_quantized:
            problem = f"of quantized dtype {dtype_name(value.dtype)}"
        elif value.is_meta:
            problem = "on the meta device (it has no content)"
        address = 0 if problem else value.data_ptr()
        if not problem and not address and value.numel() and (value.is_cpu or value.is_cuda):
            problem = "whose memory has been given back"
        if problem:
            raise UnsupportedState(f"{_where(path)}: a tensor {problem} can't be put into a checkpoint")
        name = path
        number = 2
        while name in self.tensors:  # {"a.b": …} beside {"a": {"b": …}}
            name = f"{path}#{number}"
            number += 1
        if address and value.numel():
            # Tied weights and other names of the same memory are stored once.
            here = self.seen.get(address)
            if here is None:
                self.seen[address] = name
            else:
                known = here if isinstance(here, list) else [here]
                for other in known:
                    if _same(self.tensors[other], value):
                        return other
                self.seen[address] = [*known, name]
        # Kept until the checkpoint is staged, so that no later temporary can come to lie at the same address.
        self.tensors[name] = value
        self.lengths.append(value.nbytes)
        if not value.is_cpu:
            self.devices.add(value.device)
        return name


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors at one address are the same."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.device == other.device
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )


def _decode(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(v, tensors) for v in node]
    if not isinstance(node, dict):
        return node
    kind = next(iter(node))
    body = node[kind]
    if kind == "map":
        return {k: _decode(v, tensors) for k, v in body.items()}
    if kind == "tensor":
        return tensors[body]
    if kind == "tensors":
        under = node["under"]
        return {k: tensors[under + k] for k in body}
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise NewerFormat(f"the checkpoint's state holds a value of kind {kind!r}, which this version doesn't know")
    return decoder(node, tensors)


def _pairs(node: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[Any, Any]:
    return {_decode(k, tensors): _decode(v, tensors) for k, v in node["dict"]}


def _ordered(node: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> OrderedDict[Any, Any]:
    result = OrderedDict(_decode(node["odict"], tensors))
    if node.get("metadata") is not None:
        result._metadata = OrderedDict(_decode(node["metadata"], tensors))  # type: ignore[attr-defined]
    return result


def _default(node: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> defaultdict[Any, Any]:
    factory = None if node["factory"] is None else _FACTORIES[node["factory"]]
    return defaultdict(factory, _decode(node["defaultdict"], tensors))


def _numpy_dtype(name: str) -> tuple[Any, Any]:
    import numpy as np  # the checkpoint was made by a program that had it

    dtype = np.dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise Damaged(f"the checkpoint's state names the array type {name!r}")
    return np, dtype


def _array(node: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    _, dtype = _numpy_dtype(node["dtype"])
    return tensors[node["ndarray"]].numpy().view(dtype).reshape(node["shape"])


def _scalar(node: dict[str, Any], _tensors: Mapping[str, torch.Tensor]) -> Any:
    numpy, dtype = _numpy_dtype(node["dtype"])
    return numpy.frombuffer(bytes.fromhex(node["npscalar"]), dtype=dtype)[0]


_DECODERS: dict[str, Callable[[dict[str, Any], Mapping[str, torch.Tensor]], Any]] = {
    "dict": _pairs,
    "odict": _ordered,
    "counter": lambda n, t: Counter(_decode(n["counter"], t)),
    "defaultdict": _default,
    "tuple": lambda n, t: tuple(_decode(v, t) for v in n["tuple"]),
    "size": lambda n, _: torch.Size(n["size"]),
    "deque": lambda n, t: deque((_decode(v, t) for v in n["deque"]), n["maxlen"]),
    "set": lambda n, t: {_decode(v, t) for v in n["set"]},
    "frozenset": lambda n, t: frozenset(_decode(v, t) for v in n["frozenset"]),
    "int": lambda n, _: int(n["int"], 16),
    "float": lambda n, _: struct.unpack(">d", bytes.fromhex(n["float"]))[0],
    "complex": lambda n, _: complex(*struct.unpack(">dd", bytes.fromhex(n["complex"]))),
    "bytes": lambda n, _: base64.b64decode(n["bytes"], validate=True),
    "bytearray": lambda n, _: bytearray(base64.b64decode(n["bytearray"], validate=True)),
    "dtype": lambda n, _: dtype_of(n["dtype"]),
    "device": lambda n, _: torch.device(n["device"]),
    "ndarray": _array,
    "npscalar": _scalar,
}
