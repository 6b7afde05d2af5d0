"""How far a long read or write is: a bar on a terminal, a line now and then in a batch job's output, nothing where it takes no time.

Whoever moves the bytes is given a `Progress`: called with how many there are, it gives what is told how many more are done.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

FIRST = 1.0
"""Seconds after which a bar appears."""
EVERY = 30.0
"""Seconds between two lines."""

Tell = Callable[[int], None]
Progress = Callable[[int], AbstractContextManager[Tell]]


@contextmanager
def silent(total: int) -> Iterator[Tell]:
    """A `Progress` that shows nothing."""
    yield lambda count: None


def may_draw() -> bool:
    """Whether standard error is a terminal on which a line can be drawn again."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False  # it is closed


class Shown:
    """A `Progress` that shows ``what``: by a bar on standard error (``bar``), else by lines that ``say`` puts out."""

    def __init__(
        self, what: str, say: Callable[[str], None], *, bar: bool, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._say, self._bar, self._steady = what, say, bar, steady

    @contextmanager
    def __call__(self, total: int) -> Iterator[Tell]:
        """``total``: bytes."""
        meter = _Meter(self._what, total, self._say, self._bar, self._steady)
        try:
            yield meter.tell
        finally:
            meter.close()


class _Meter:
    def __init__(
        self, what: str, total: int, say: Callable[[str], None], bar: bool, steady: Callable[[], float]
    ) -> None:
        self._what, self._total, self._say, self._wants_bar, self._steady = what, total, say, bar, steady
        self._done = 0
        self._began = self._said = steady()
        self._drawn: Any = None

    def tell(self, count: int) -> None:
        self._done += count
        now = self._steady()
        if self._wants_bar:
            if self._drawn is None and now - self._began >= FIRST:
                self._draw()
            if self._drawn is not None:
                self._drawn.update(0, completed=self._done)
        elif now - self._said >= EVERY:
            self._said = now
            self._say(line(self._what, self._done, self._total, now - self._began))

    def close(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def _draw(self) -> None:
        """With rich, which takes a tenth of a second to import: by now nobody minds."""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            self._wants_bar = False  # the node side does without it
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
        )
        plain = bool(os.environ.get("NO_COLOR"))
        console = Console(stderr=True, color_system=None if plain else "auto")
        self._drawn = Progress(*columns, console=console, transient=True)
        self._drawn.add_task(self._what, total=self._total or None)
        self._drawn.start()


def line(what: str, done: int, total: int, seconds: float) -> str:
    """``restoring: 1.2 of 8.0 GiB, 0.1 GiB/s, 68 s left``. Pure."""
    unit, name = next(
        ((size, name) for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB")) if total >= size), (1024, "KiB")
    )
    speed = done / seconds if seconds > 0 else 0.0
    left = f", {(total - done) / speed:.0f} s left" if speed > 0 and total > done else ""
    return f"{what}: {done / unit:.1f} of {total / unit:.1f} {name}, {speed / unit:.2g} {name}/s{left}"
