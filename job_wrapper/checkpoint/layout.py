"""Where each tensor of a state lies in the memory that a save copies it into, and in which item of the checkpoint: pure.

Small tensors go into bundles, and bundles into blocks. A block begins at a page and is copied and written as a whole, so one can be on
its way to the store while the next is still being copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch

from job_wrapper.checkpoint.bundles import BELOW, SIZE, Bundle, aligned, equal_runs
from job_wrapper.checkpoint.state import Encoded

PAGE = 4096
"""Bytes: blocks, and tensors that are in none, begin at a page."""
BLOCK = 8 << 20
"""Bytes of a block at most: enough for one write to the disk at its speed."""
_MOST = 2048
"""Tensors of a block at most: what they are made of fits into the processor's cache while they are looked at in several ways."""

Sized = tuple[str, torch.Tensor, int]
"""Name, tensor, length in bytes."""


class Plan(NamedTuple):
    """What goes where. Of the small tensors there may be very many, so they are held in columns."""

    names: list[str]
    """Of the small tensors, as the next two."""
    live: list[torch.Tensor]
    lengths: list[int]
    """Bytes of each."""
    large: list[Sized]
    size: int
    """Bytes of memory for all of them."""
    devices: set[torch.device]
    """All but the processor that tensors are on."""

    @property
    def pinned(self) -> bool:
        """Whether the memory is to be such that a GPU copies into at full speed."""
        return any(device.type == "cuda" for device in self.devices)


class Run(NamedTuple):
    """Neighbours of one dtype and shape, ``[first, last)`` of a block's tensors, from ``begin`` of its bytes on."""

    first: int
    last: int
    begin: int
    length: int
    """Bytes of each."""


class Span(NamedTuple):
    """A bundle: ``[first, last)`` of a block's tensors, in ``[begin, end)`` of its bytes."""

    first: int
    last: int
    begin: int
    end: int


class Layout(NamedTuple):
    """One block: its tensors in columns, as in `Bundle`, and where they lie."""

    names: list[str]
    live: list[torch.Tensor]
    dtypes: list[torch.dtype]
    shapes: list[tuple[int, ...]]
    lengths: list[int]
    runs: list[Run]
    spans: list[Span]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.spans[-1].end

    def bundle(self, span: Span, data: memoryview) -> Bundle:
        """The one in ``data``."""
        part = slice(span.first, span.last)
        return Bundle(self.names[part], self.dtypes[part], self.shapes[part], data)


def paged(length: int) -> int:
    """``length`` up to the next multiple of ``PAGE``."""
    return -(-length // PAGE) * PAGE


def plan(encoded: Encoded) -> Plan:
    """What goes where. As little as possible is done for each tensor in turn."""
    names, live, lengths = list(encoded.tensors), list(encoded.tensors.values()), encoded.lengths
    large: list[Sized] = []
    if max(lengths, default=0) >= BELOW:
        every = list(zip(names, live, lengths, strict=True))
        large = [one for one in every if one[2] >= BELOW]
        small = [one for one in every if one[2] < BELOW]
        names, live, lengths = ([one[n] for one in small] for n in range(3))  # type: ignore[assignment]
    size = sum(paged(_size(lengths[first:last])) for first, last in blocks_of(lengths))
    return Plan(names, live, lengths, large, size + sum(paged(length) for _, _, length in large), encoded.devices)


def _size(lengths: Sequence[int]) -> int:
    """Bytes of a block at most."""
    return sum(aligned(length) * count for length, count in Counter(lengths).items())


def blocks_of(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First of the small tensors in each block, and the one after its last."""
    first = 0
    while first < len(lengths):
        near = lengths[first : first + _MOST]
        last = first + min(len(near), BLOCK // max(1, aligned(max(near))))
        yield first, last
        first = last


def small_of(planned: Plan) -> Iterator[Layout]:
    """The blocks of its small tensors."""
    for first, last in blocks_of(planned.lengths):
        live, lengths = planned.live[first:last], planned.lengths[first:last]
        dtypes: list[torch.dtype] = list(map(attrgetter("dtype"), live))
        shapes: list[tuple[int, ...]] = list(map(attrgetter("shape"), live))
        alike = [*_both(equal_runs(dtypes), equal_runs(shapes))]
        if len(alike) == 1:  # thousands of objects fewer to keep, and to be looked at by the collector of garbage
            shapes = shapes[:1] * len(live)
        yield Layout(planned.names[first:last], live, dtypes, shapes, lengths, *lay_out(alike, lengths))


def _both(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Runs that are equal in both."""
    ends = sorted({last for _, last in one} | {last for _, last in other})
    return zip([0, *ends], ends, strict=False)


def lay_out(alike: Iterable[tuple[int, int]], lengths: Sequence[int]) -> tuple[list[Run], list[Span]]:
    """One block: its tensors in order, each at the next multiple of ``ALIGNMENT``, cut into bundles of at most ``SIZE`` bytes."""
    runs: list[Run] = []
    spans: list[Span] = []
    start = end = first = 0
    for at, last in alike:
        length = lengths[at]
        stride, offset = aligned(length), aligned(end)
        runs.append(Run(at, last, offset, length))
        while at < last:
            room = start + SIZE - offset - length
            if room < 0:
                spans.append(Span(first, at, start, end))
                start, first = offset, at
                continue
            fitting = min(last - at, room // stride + 1) if length else last - at
            end = offset + (fitting - 1) * stride + length
            offset = aligned(end)
            at += fitting
    spans.append(Span(first, len(lengths), start, end))
    return runs, spans
