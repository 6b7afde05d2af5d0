"""A watcher in a thread, and what it told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from job_wrapper.notice.types import Notice
from job_wrapper.notice.watch import CloudWatcher, Source


class Listening:
    """``more`` as in ``CloudWatcher``."""

    def __init__(self, source: Source, **more: object) -> None:
        self.heard: list[Notice | None] = []
        self.log: list[str] = []
        self.stop = threading.Event()
        self.watcher = CloudWatcher(source, log=self.log.append, **more)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.watcher.watch, args=(self.heard.append, self.stop.wait), daemon=True)
        self.thread.start()

    def until(self, what: Callable[[], object], seconds: float = 60) -> None:
        """Until it is true."""
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, (self.heard, self.log)
            time.sleep(0.01)

    def looks(self, count: int = 5) -> None:
        """That many more looks are over."""
        before = self.watcher.looks
        self.until(lambda: self.watcher.looks >= before + count)

    def end(self) -> None:
        """It ends, whatever it was in the middle of."""
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
