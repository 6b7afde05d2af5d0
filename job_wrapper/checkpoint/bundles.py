"""Small tensors travel together: an item of a checkpoint costs about as much as a copy of 30 KiB, so thousands of small ones share a few.

A bundle is an item of at most ``SIZE`` bytes: the bytes of several tensors, each at the next multiple of ``ALIGNMENT``. The index of
all bundles is one item of its own, in columns::

    {"format":1,"counts":[<tensors of bundle 0>,…],"names":["<name>",…],"dtypes":[["<dtype>",<how many>],…],"shapes":[[[<n>,…],<how many>],…]}

Bundles are no larger, so that small weights that never change are still recognised as unchanged next to some that do.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from math import prod
from typing import Any

import torch

from job_wrapper.checkpoint.state import dtype_name, dtype_of
from job_wrapper.errors import Damaged, NewerFormat

ALIGNMENT = 64
"""Bytes: any dtype can be viewed at such an offset."""
BELOW = 32 << 10
"""Bytes: smaller tensors are bundled."""
SIZE = 256 << 10
"""Bytes of a bundle at most."""
FORMAT = 1
"""Version of the index."""
INDEX = ".bundles.json"
"""Name of the index's item. No tensor's path in a `Checkpointer`'s state begins with a dot."""
_MAX_SHAPE = 64

Row = tuple[str, torch.dtype, tuple[int, ...]]
"""Name, dtype, shape."""


def aligned(length: int) -> int:
    """``length`` up to the next multiple of ``ALIGNMENT``."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def name_of(number: int) -> str:
    """Name of a bundle's item."""
    return f".bundle-{number:06d}"


@dataclass(slots=True)
class Bundle:
    """What is in one, in order and in columns, and its bytes."""

    names: list[str]
    dtypes: list[torch.dtype]
    shapes: list[tuple[int, ...]]
    data: memoryview = field(default_factory=lambda: memoryview(b""))


def encode_index(bundles: Sequence[Bundle]) -> bytes:
    """The index as it is stored."""
    dtypes = list(chain.from_iterable(bundle.dtypes for bundle in bundles))
    shapes = list(chain.from_iterable(bundle.shapes for bundle in bundles))
    index = {
        "format": FORMAT,
        "counts": [len(bundle.names) for bundle in bundles],
        "names": list(chain.from_iterable(bundle.names for bundle in bundles)),
        "dtypes": [[dtype_name(dtypes[first]), last - first] for first, last in equal_runs(dtypes)],
        "shapes": [[list(shapes[first]), last - first] for first, last in equal_runs(shapes)],
    }
    return json.dumps(index, separators=(",", ":")).encode()


def equal_runs(values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Where neighbours that are equal begin and end."""
    if values and values.count(values[0]) == len(values):  # mostly; looking at each in turn takes longer
        yield 0, len(values)
        return
    first = 0
    for _, group in groupby(values):
        last = first + len(list(group))
        yield first, last
        first = last


def decode_index(data: bytes | bytearray, where: str) -> list[list[Row]]:
    """The rows of each bundle. Raises ``Damaged`` or ``NewerFormat`` naming ``where``."""
    try:
        index = json.loads(bytes(data))
        version = index["format"]
        if type(version) is not int or version != FORMAT:
            if type(version) is int and version > FORMAT:
                raise NewerFormat(
                    f"{where}: bundles of format {version}; this one reads up to {FORMAT}: update spotburst here"
                )
            raise ValueError(f"format {version!r}")
        names = index["names"]
        dtypes = _spread([(dtype_of(name), n) for name, n in index["dtypes"]], len(names))
        shapes = _spread([(_shape(shape), n) for shape, n in index["shapes"]], len(names))
        if len(set(names)) != len(names) or not all(type(name) is str for name in names):
            raise ValueError("names that are no names")
        rows = list(zip(names, dtypes, shapes, strict=True))
        bundles, at = [], 0
        for count in index["counts"]:
            if type(count) is not int or not 0 <= count <= len(rows) - at:
                raise ValueError(f"a bundle of {count!r} tensors")
            bundles.append(rows[at : at + count])
            at += count
        if at != len(rows):
            raise ValueError("tensors in no bundle")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{where}: damaged: the index of its small tensors can't be read ({error})") from error
    return bundles


def _spread(runs: Sequence[tuple[Any, Any]], length: int) -> list[Any]:
    if not all(type(n) is int and 0 < n <= length for _, n in runs) or sum(n for _, n in runs) != length:
        raise ValueError("runs that do not fit the names")
    return [value for value, n in runs for _ in range(n)]


def possible(shape: Sequence[int]) -> bool:
    """Whether torch can make such a tensor; also an empty one has strides, which must not overflow. Pure."""
    return min(shape, default=0) >= 0 and prod(max(n, 1) for n in shape) < 1 << 56


def _shape(shape: Any) -> tuple[int, ...]:
    if (
        type(shape) is not list
        or len(shape) > _MAX_SHAPE
        or not all(type(n) is int for n in shape)
        or not possible(shape)
    ):
        raise ValueError(f"shape {str(shape)[:100]}")
    return tuple(shape)


def places(rows: Sequence[Row], size: int, where: str) -> list[tuple[int, int]]:
    """Offset and length of each tensor in a bundle. Raises ``Damaged`` if together they aren't ``size`` bytes."""
    found: list[tuple[int, int]] = []
    end = 0
    for _, dtype, shape in rows:
        offset = aligned(end)
        length = prod(shape) * dtype.itemsize
        end = offset + length
        if end > size:
            break
        found.append((offset, length))
    if end != size:
        raise Damaged(f"{where}: damaged: a bundle of {size} bytes whose tensors have another length")
    return found


def unpack(rows: Sequence[Row], data: bytearray, where: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of one bundle, each in memory of its own. Raises ``Damaged`` if they aren't as many bytes as ``data``."""
    base = ctypes.addressof(ctypes.c_ubyte.from_buffer(data)) if data else 0
    for (name, dtype, shape), (offset, length) in zip(rows, places(rows, len(data), where), strict=True):
        tensor = torch.empty(shape, dtype=dtype)
        if length:
            ctypes.memmove(tensor.data_ptr(), base + offset, length)
        yield name, tensor
