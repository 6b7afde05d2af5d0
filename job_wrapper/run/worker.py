"""Threads that do what may be slow, so that the wrapper itself is never deaf: one task at a time each, results by a queue and a pipe."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any


class Results:
    """What worker threads and watchers hand to the loop. ``fd`` becomes readable when there is something."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Any) -> None:
        """From any thread."""
        self._items.put(item)
        try:
            os.write(self._write, b"x")
        except OSError:
            return  # full: it is readable already; or closed: nobody reads any more

    def take(self) -> list[Any]:
        """All there is, in the loop's thread."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 65536)
        items = []
        while True:
            try:
                items.append(self._items.get_nowait())
            except queue.Empty:
                return items


class Worker:
    """One daemon thread, started when it is first needed. A daemon: a store that hangs must not keep the wrapper from ending."""

    def __init__(self, name: str, results: Results) -> None:
        self._name = name
        self._results = results
        self._tasks: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._submitted = 0
        self._done = 0

    @property
    def idle(self) -> bool:
        """Nothing is being done or waits. (Each count is written by one thread only.)"""
        return self._submitted == self._done

    def submit(self, task: Callable[[], Any]) -> None:
        """Do it after what was submitted before. What it returns, unless None, goes to the results."""
        self._submitted += 1
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                result = task()
            except BaseException as error:
                result = error
            if result is not None:
                self._results.put(result)
            self._done += 1
