"""A save that the program waits for anyway: the state goes from the program's own memory to the packs, piece by piece.

It needs little memory of its own, and no staging before the first byte is written.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator

import torch

from job_wrapper.checkpoint import bundles
from job_wrapper.checkpoint.layout import plan, small_of
from job_wrapper.checkpoint.memory import NoRoomError, bytes_of, is_plain, synchronize
from job_wrapper.checkpoint.staging import Arena, Batch
from job_wrapper.checkpoint.state import Encoded, dtype_name
from job_wrapper.store import PartWriter

log = logging.getLogger("spotburst")


def content_of(encoded: Encoded, arena: Arena | None, step: int) -> Batch | Stream:
    """What a save writes: a copy in the arena, or where that is None or there is no room for it, the tensors themselves."""
    if arena is None:
        return Stream(encoded)
    try:
        return arena.open(encoded)
    except NoRoomError as error:
        log.warning(
            "there is no room to stage the state in host memory (%s), so training stops until step %d is saved; "
            "with about once the size of the state more (--mem) it would go on",
            error,
            step,
        )
        return Stream(encoded)


class Stream:
    """Content of a save, read as it is written: the tensors must not change before the save has ended.

    Of a tensor whose memory isn't in order (transposed, say) one copy is made, one tensor at a time.
    """

    def __init__(self, encoded: Encoded) -> None:
        self._plan = plan(encoded)
        self.total = self._plan.size
        synchronize(self._plan.devices)  # the thread that writes has streams of its own

    def copy(self) -> None:
        """Nothing is copied beforehand."""

    def copy_rest(self) -> None:
        """Nor afterwards."""

    def write(self, writer: PartWriter, done: Callable[[int], None]) -> None:
        """Into the part. ``done`` is told the bytes of each piece, and may raise."""
        packed: list[bundles.Bundle] = []
        for bundle in self._bundles():
            writer.add_bytes(bundles.name_of(len(packed)), bundle.data)
            done(len(bundle.data))
            bundle.data = memoryview(b"")  # it is on its way
            packed.append(bundle)
        if packed:
            writer.add_bytes(bundles.INDEX, bundles.encode_index(packed))
        for name, tensor, length in self._plan.large:
            copy = _Copy(tensor, done)
            writer.add_streamed(name, length, copy, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))

    def _bundles(self) -> Iterator[bundles.Bundle]:
        """The same as a staged save makes, so that what is unchanged is found to be."""
        for block in small_of(self._plan):
            for span in block.spans:
                memory, at = memoryview(bytearray(span.end - span.begin)), 0
                part = slice(span.first, span.last)
                for tensor, length in zip(block.live[part], block.lengths[part], strict=True):
                    at = bundles.aligned(at)
                    if length:
                        _Copy(tensor)(memory[at : at + length], 0)
                    at += length
                yield block.bundle(span, memory)


class _Copy:
    """Fills memory with a tensor's bytes from some offset on."""

    def __init__(self, tensor: torch.Tensor, done: Callable[[int], None] = lambda count: None) -> None:
        self._done = done
        with torch.no_grad():
            if not is_plain(tensor):
                tensor = tensor.resolve_conj().resolve_neg().contiguous()
            self._tensor = tensor.detach()
            self._bytes = None if tensor.is_cpu else bytes_of(tensor)

    def __call__(self, view: memoryview, offset: int) -> None:
        length = len(view)
        if self._bytes is None:
            target = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
            ctypes.memmove(target, self._tensor.data_ptr() + offset, length)
        else:
            torch.frombuffer(view, dtype=torch.uint8).copy_(self._bytes[offset : offset + length])
        self._done(length)
