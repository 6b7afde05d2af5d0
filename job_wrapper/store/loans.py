"""Memory that is lent out up to a bound and comes back by itself: when nothing refers to a loan any more.

So that data can be handed to an upload without a copy and without knowing when the upload has sent it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import queue
import weakref
from collections.abc import Callable

_LOOK = 0.1
"""Seconds after which whoever waits for memory looks whether waiting still makes sense."""


class Loans:
    """At most ``limit`` bytes are out at a time (one loan always can be). Loans of ``size`` bytes, the usual ones, use the same memory again.

    One thread at a time may call ``take``; what was lent may be dropped in any thread. Loans begin at a page.
    """

    def __init__(self, limit: int, size: int) -> None:
        self._limit, self._size = limit, size
        self._out = 0
        self._kept: list[mmap.mmap] = []
        # A simple queue: it may be used from a destructor, whatever the thread was doing.
        self._back: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()

    def take(self, length: int, still: Callable[[], object] = lambda: None) -> memoryview:
        """``length`` bytes of any content, as soon as there is room. ``still`` is called while waiting, and may raise."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._returned(self._back.get_nowait())
        while self._out and self._out + length > self._limit:
            try:
                self._returned(self._back.get(timeout=_LOOK))
            except queue.Empty:
                still()
        buffer = self._kept.pop() if length == self._size and self._kept else mmap.mmap(-1, length)
        self._out += length
        loan = (ctypes.c_char * length).from_buffer(buffer)
        weakref.finalize(loan, self._back.put, buffer).atexit = False
        return memoryview(loan).cast("B")

    def _returned(self, buffer: mmap.mmap) -> None:
        self._out -= len(buffer)
        if len(buffer) == self._size:
            self._kept.append(buffer)
