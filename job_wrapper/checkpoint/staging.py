"""The staging arena: host memory, touched beforehand, that a save copies the state into while the training stops.

What is copied of it may already be written while the rest is still being copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from job_wrapper.checkpoint.bundles import INDEX, Bundle, encode_index, name_of
from job_wrapper.checkpoint.copying import Placed, copy_block, copy_large
from job_wrapper.checkpoint.layout import Plan, paged, plan, small_of
from job_wrapper.checkpoint.memory import NoRoomError, Pages, synchronize
from job_wrapper.checkpoint.overlap import LateCopy, Overlap
from job_wrapper.checkpoint.state import Encoded, dtype_name
from job_wrapper.errors import UsageError
from job_wrapper.store import PartWriter

log = logging.getLogger("spotburst")


@dataclass(frozen=True, slots=True)
class Staged:
    """One tensor's bytes, row-major, in the arena until it is released."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class Block:
    """Bundles that lie one after the other in ``data``, each with where it begins there."""

    bundles: list[tuple[int, Bundle]]
    data: memoryview


class Batch:
    """All that a save has to write: ``copy`` copies it into the arena, and ``write``, in another thread, may begin at the same time.

    With an ``overlap`` some of it is left to ``copy_rest``, which that thread calls first.
    """

    def __init__(self, pages: Pages, planned: Plan, overlap: Overlap | None = None) -> None:
        self.total = planned.size
        """Bytes, with the gaps between tensors."""
        self.tensors: list[Staged] = []
        self.blocks: list[Block] = []
        self._pages = pages
        self._plan: Plan | None = planned
        self._overlap = overlap
        self._late: LateCopy | None = None
        self._changed = threading.Condition()
        self._complete = False
        """Whether no more blocks come."""

    @property
    def bundles(self) -> list[Bundle]:
        """Of all blocks."""
        return [bundle for block in self.blocks for _, bundle in block.bundles]

    def copy(self) -> None:
        """Once. When it returns the program may change its tensors, but for what the overlap's optimizers change.

        When it raises, what ``write`` writes is not whole.
        """
        planned = self._plan
        if planned is None:
            raise RuntimeError("it is copied already")
        self._plan = None  # what is kept holds none of the program's memory
        try:
            # What a device copies is there only once it has been waited for.
            blocks = self._copied_blocks(planned)
            if not planned.devices:
                for block in blocks:
                    self._add(block)
            late = list(blocks)
            self._copy_large(planned)
            synchronize(planned.devices)  # the copies were put behind the step's own work; only now are they done
            for block in late:
                self._add(block)
        finally:
            with self._changed:
                self._complete = True
                self._changed.notify_all()

    def _copied_blocks(self, planned: Plan) -> Iterator[Block]:
        """By this thread alone: one that helps would take the processor from those that write meanwhile."""
        begin = 0
        for block in small_of(planned):
            copy_block(self._pages, begin, block.live, block.runs)
            data = self._pages.view[begin : begin + block.size]
            yield Block([(span.begin, block.bundle(span, data[span.begin : span.end])) for span in block.spans], data)
            begin += paged(block.size)

    def _copy_large(self, planned: Plan) -> None:
        placed: list[Placed] = []
        offset = planned.size - sum(paged(length) for _, _, length in planned.large)
        for name, tensor, length in planned.large:
            placed.append((tensor, offset, length))
            data = self._pages.view[offset : offset + length]
            self.tensors.append(Staged(name, dtype_name(tensor.dtype), tuple(tensor.shape), data))
            offset += paged(length)
        if self._overlap is not None:
            placed, self._late = self._overlap.begin(self._pages.address, placed)
        copy_large(self._pages, placed)

    def copy_rest(self) -> None:
        """What ``copy`` left. Raises ``Overtaken`` if the program wrote it meanwhile."""
        if self._overlap is None:
            return
        with self._changed:
            while not self._complete:
                self._changed.wait()
        if self._late is not None:
            self._late.run()

    def _add(self, block: Block) -> None:
        with self._changed:
            self.blocks.append(block)
            self._changed.notify_all()

    def _as_they_come(self) -> Iterator[Block]:
        """From the first one on, each time: what was lost from the store is written once more."""
        number = 0
        while True:
            with self._changed:
                while number == len(self.blocks) and not self._complete:
                    self._changed.wait()
                if number == len(self.blocks):
                    return
            yield self.blocks[number]
            number += 1

    def write(self, writer: PartWriter, done: Callable[[int], None]) -> None:
        """Into the part, all of it, as soon as it is copied. ``done`` is told the bytes of each piece, and may raise."""
        number = 0
        for block in self._as_they_come():
            names = map(name_of, range(number, number + len(block.bundles)))
            items = [(name, at, len(bundle.data)) for name, (at, bundle) in zip(names, block.bundles, strict=True)]
            number += len(items)
            if block.data:
                writer.add_together(block.data, [item for item in items if item[2]])
            for name in (name for name, _, length in items if not length):
                writer.add_bytes(name, b"")
            done(len(block.data))
        if number:  # last, when the disk has something to do
            writer.add_bytes(INDEX, encode_index(self.bundles))
        for one in self.tensors:
            writer.add_tensor(one.name, one.data, dtype=one.dtype, shape=one.shape)
            done(len(one.data))


def arena_for(staging: bool | Literal["overlap"], optimizers: Sequence[torch.optim.Optimizer]) -> Arena | None:
    """What ``Checkpointer(staging=…)`` asks for. Raises ``UsageError`` for another word than it knows."""
    if staging not in (True, False, "overlap"):
        raise UsageError(f'Checkpointer(staging={staging!r}): staging is True, False or "overlap"')
    if staging == "overlap" and not optimizers:
        log.warning(
            "staging='overlap' is for optimizers given by name, as in Checkpointer(optimizer=…): there is none, so nothing is copied late"
        )
    if not staging:
        return None
    arena = Arena()
    if staging == "overlap" and optimizers:
        try:
            arena.overlap = Overlap(optimizers)
        except OSError as error:
            log.warning("staging='overlap' can't be had here (%s): the state is staged while training stops", error)
    return arena


class Arena:
    """Grows when the state does; ``allocations`` counts how often it was made anew for that. One save may hold it at a time."""

    def __init__(self) -> None:
        self.allocations = 0
        self.overlap: Overlap | None = None
        """If set, saves use it."""
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._held = False
        self._pages: Pages | None = None

    @property
    def capacity(self) -> int:
        """Bytes."""
        return len(self._pages.view) if self._pages is not None else 0

    def prepare(self, size: int, *, pinned: bool = False) -> None:
        """Allocate and touch at least ``size`` bytes unless they are there; a thread of its own may do it beforehand.

        Gives way to ``open``, and leaves an arena alone that would have to be made anew while a save holds it. Raises ``NoRoomError``.
        """
        with self._lock:
            if size <= self.capacity or not self._held:
                self._reserve(size, pinned).touch(size, self._hurry.is_set)

    def prepare_beside(self, encoded: Encoded, more: int = 0) -> None:
        """``prepare`` for its tensors and ``more`` bytes in a thread of its own. Where there is no room the save will find out."""
        planned = plan(encoded)
        size, pinned = planned.size + more, planned.pinned

        def prepare() -> None:
            try:
                self.prepare(size, pinned=pinned)
            except NoRoomError as error:
                log.debug("no staging memory yet: %s", error)

        threading.Thread(target=prepare, name="spotburst-staging", daemon=True).start()

    def open(self, encoded: Encoded) -> Batch:
        """Memory for all of its tensors, held until ``release``. Raises ``NoRoomError``."""
        planned = plan(encoded)
        size = planned.size
        self._hurry.set()
        with self._lock:
            self._hurry.clear()
            if self._held:
                raise RuntimeError("the staging arena still holds another save")
            pages = self._reserve(size, planned.pinned)
            if pages.touched < size:
                pages.touch(size, lambda: True)  # is there room? The copying threads touch what is left themselves
                pages.touched = size
            self._held = True
        return Batch(pages, planned, self.overlap)

    def release(self) -> None:
        """The staged bytes are no longer needed."""
        if self.overlap is not None:
            self.overlap.release()
        self._held = False

    def close(self) -> None:
        """No more saves. Not while one is in flight."""
        if self.overlap is not None:
            self.overlap.close()

    def _reserve(self, size: int, pinned: bool) -> Pages:
        if self._pages is None or size > self.capacity:
            self._pages = None  # the old one goes before the new one comes
            self._pages = Pages(size, pinned=pinned)
            self.allocations += 1
        return self._pages
