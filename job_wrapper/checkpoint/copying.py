"""Copying tensors into memory as fast as the memory is: many small ones by one call, large ones in pieces by several threads."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import torch

from job_wrapper.checkpoint.bundles import ALIGNMENT, aligned
from job_wrapper.checkpoint.layout import Run
from job_wrapper.checkpoint.memory import Pages, bytes_of, is_plain
from job_wrapper.processors import processors

_PIECE = 4 << 20
"""Bytes: what a copying thread takes at a time; a thread that has to wait for a processor holds up no more than that."""
_THREADS = 4
"""Copying threads at most: so many fill a memory bus."""
_PER_THREAD = 16 << 20
_ALIKE = 16
"""So many small tensors of one shape are copied by one call."""
_JOINED = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8}

Placed = tuple[torch.Tensor, int, int]
"""A tensor, where it goes, how many bytes."""
Piece = tuple[int, int, int]
"""To, from, how many bytes."""


@torch.no_grad()
def copy_block(pages: Pages, begin: int, tensors: Sequence[torch.Tensor], runs: Iterable[Run]) -> None:
    """The tensors of one block, laid out in ``runs``, to ``begin``. Copies from a device are done when it has been waited for."""
    for run in runs:
        if run.length:
            _copy_alike(pages, begin + run.begin, tensors[run.first : run.last], run.length)


def _copy_alike(pages: Pages, offset: int, tensors: Sequence[torch.Tensor], length: int) -> None:
    """Tensors of one dtype and shape and ``length`` bytes, one after the other."""
    dtype, shape = tensors[0].dtype, tensors[0].shape
    together = len(tensors) >= _ALIKE and shape and length % ALIGNMENT == 0 and dtype in _JOINED
    if together and all(map(attrgetter("is_cpu"), tensors)):
        target = pages.bytes[offset : offset + len(tensors) * length].view(dtype)
        torch.cat(list(tensors), out=target.view(len(tensors) * shape[0], *shape[1:]))
        return
    base, copy = pages.address, ctypes.memmove
    for tensor in tensors:
        if tensor.is_cpu:
            plain = tensor.contiguous()
            if plain.is_conj() or plain.is_neg():
                plain = plain.resolve_conj().resolve_neg()
            copy(base + offset, plain.data_ptr(), length)
        else:
            _copy_to(pages, tensor, offset, length)
        offset += aligned(length)


@torch.no_grad()
def copy_large(pages: Pages, placed: Iterable[Placed]) -> None:
    """Tensors of any size and kind. Copies from a device are done when it has been waited for."""
    pieces: list[Piece] = []
    others: list[Placed] = []
    base = pages.address
    for tensor, offset, length in placed:
        if tensor.is_cpu and is_plain(tensor):
            pieces += cut((base + offset, tensor.data_ptr(), length))
        else:
            others.append((tensor, offset, length))
    left = iter(pieces)
    helpers: list[threading.Thread] = []
    try:
        with contextlib.suppress(RuntimeError):  # no more threads are to be had: those that there are do it
            for _ in range(min(processors(), _THREADS, sum(length for _, _, length in pieces) // _PER_THREAD) - 1):
                helper = threading.Thread(target=move, args=(left,), name="spotburst-copy", daemon=True)
                helper.start()
                helpers.append(helper)
        for tensor, at, length in others:
            _copy_to(pages, tensor, at, length)
        move(left)
    finally:
        for helper in helpers:
            helper.join()


def cut(whole: Piece) -> Iterator[Piece]:
    """The same memory in pieces that a copying thread takes at a time."""
    target, source, length = whole
    for at in range(0, length, _PIECE):
        yield target + at, source + at, min(_PIECE, length - at)


def move(pieces: Iterator[Piece]) -> None:
    """Copy until there are none left. Of several threads each takes the next piece: the interpreter lock is only free in the copy."""
    for target, source, length in pieces:
        ctypes.memmove(target, source, length)


def _copy_to(pages: Pages, tensor: torch.Tensor, offset: int, length: int) -> None:
    target = pages.bytes[offset : offset + length]
    if is_plain(tensor):
        target.copy_(bytes_of(tensor), non_blocking=True)
    else:
        target.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
