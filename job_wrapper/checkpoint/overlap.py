"""Staging while training goes on: what an optimizer writes is copied during the next forward and backward, which only read it.

As CheckFreq does (Mohan and others, FAST 2021): the optimizer's next step waits for the copy. Whether anything else wrote meanwhile
is not left to hope: the page tables tell (`WriteTracker`), and a copy that may be torn is thrown away.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch

from job_wrapper.checkpoint.copying import Piece, Placed, cut, move
from job_wrapper.checkpoint.memory import is_plain
from job_wrapper.checkpoint.write_tracking import WriteTracker, whole_pages
from job_wrapper.errors import SpotburstError

log = logging.getLogger("spotburst")

_LEAST = 256 << 10
"""Bytes: smaller tensors are copied sooner than they are watched."""


class Overtaken(SpotburstError):
    """The program wrote what was still being copied: this copy of the state is none."""

    reason = "Overtaken"


class LateCopy:
    """What is left to copy when training goes on. ``done`` is set when it may be written again."""

    def __init__(self, tracker: WriteTracker, pieces: list[Piece], live: list[torch.UntypedStorage]) -> None:
        """Begins to watch. ``live`` is the memory, which must stay: a tensor alone may be given another (``.data =``). Raises ``OSError``."""
        self.done = threading.Event()
        self.torn = False
        self._tracker, self._pieces, self._live = tracker, pieces, live
        tracker.begin((source, length) for _, source, length in pieces)

    def run(self) -> None:
        """Once, in any thread. Raises ``Overtaken``."""
        try:
            move(chain.from_iterable(map(cut, self._pieces)))
            self.torn = self._tracker.written()
            if self.torn:
                raise Overtaken(
                    "with staging='overlap' parameters or optimizer state were written by something else than the optimizer's step() while "
                    "they were copied; from now on they are copied while training stops, as with staging=True"
                )
        finally:
            self._tracker.end()
            self._live.clear()
            self.done.set()


class Overlap:
    """For the parameters of these optimizers, and what they hold for them. Call ``begin`` and ``close`` in the training's thread.

    Raises ``OSError`` where it can't be seen what the program writes.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._tracker = WriteTracker()
        self._late: LateCopy | None = None
        self._owner = os.getpid()
        self._over = False
        """Whether a copy was torn: then there are no others."""
        self._pins = torch.accelerator.is_available()
        self._hooks = [one.register_step_pre_hook(self._before_step) for one in self._optimizers]

    def _before_step(self, *_: Any) -> None:
        late = self._late
        if late is not None and os.getpid() == self._owner:  # nobody copies in a forked child
            late.done.wait()

    def begin(self, address: int, placed: Iterable[Placed]) -> tuple[list[Placed], LateCopy | None]:
        """Of the tensors that go into memory at ``address``: those to be copied at once, and the rest, of which the ends are copied."""
        if self._over:
            return list(placed), None
        mine = self._addresses()
        now: list[Placed] = []
        late: list[Placed] = []
        for one in placed:
            (late if one[2] >= _LEAST and self._watchable(one[0], mine) else now).append(one)
        pieces: list[Piece] = []
        ends: list[Piece] = []
        for tensor, offset, length in late:
            source, target = tensor.data_ptr(), address + offset
            begin, inner = whole_pages(source, length)
            head, tail = begin - source, source + length - begin - inner
            pieces.append((target + head, begin, inner))
            ends += [(target, source, head), (target + length - tail, begin + inner, tail)]
        if not pieces:
            return now, None
        try:
            self._late = LateCopy(self._tracker, pieces, [tensor.untyped_storage() for tensor, _, _ in late])
        except OSError as error:
            log.debug("no overlap: %s", error)
            return [*now, *late], None
        for target, source, length in ends:
            ctypes.memmove(target, source, length)
        return now, self._late

    def release(self) -> None:
        """Its save has ended, in whatever way: nothing is waited for. In any thread."""
        late = self._late
        if late is not None:
            self._over = self._over or late.torn
            self._tracker.end()
            late.done.set()

    def _addresses(self) -> set[int]:
        """Of what they write. What has no address, or is held deeper, is copied at once."""
        found: set[int] = set()
        for optimizer in self._optimizers:
            found.update(_address(p) for group in optimizer.param_groups for p in group["params"])
            for held in optimizer.state.values():
                if isinstance(held, Mapping):
                    found.update(_address(one) for one in held.values() if isinstance(one, torch.Tensor))
        return found

    def _watchable(self, tensor: torch.Tensor, mine: set[int]) -> bool:
        """Whether it is an optimizer's, and only code of this process can write it."""
        if not tensor.is_cpu or tensor.data_ptr() not in mine or not is_plain(tensor):
            return False
        return not tensor.untyped_storage().is_shared() and not (self._pins and tensor.is_pinned())

    def close(self) -> None:
        """The optimizers are as before. Not while a save is in flight."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._tracker.close()


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # sparse; or of a subclass that is made of others
        return 0
