"""The signals that the wrapper itself gets, as something that its loop can wait for."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

IGNORED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm warns with: it ends neither the wrapper nor, by itself, the program (`child`)."""
_early: list[int] = []


def hear_from_now_on() -> None:
    """Keep signals of ``IGNORED`` for the ``Signals`` to come. First thing in the wrapper's process, in its main thread.

    One that comes while the wrapper starts would end it before it has claimed its run, and the job as FAILED. Slurm may send one at any
    moment: one that a booting node could not be told slurmctld tells again every minute (src/slurmctld/agent.c), whatever attempt runs then.
    """
    for number in IGNORED:
        signal.signal(number, lambda came, _frame: _early.append(came))


class Signals:
    """``fd`` becomes readable when there is one. Made in the main thread; for the process's life."""

    def __init__(self, numbers: Collection[int]) -> None:
        """``numbers`` are taken note of and have no other effect."""
        self.fd, into = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(into, False)
        self._last: dict[int, float] = {}
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        os.write(into, bytes(_early))
        _early.clear()

    def take(self) -> bytes:
        """The numbers that have come since, in order."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self.fd, 4096)
        self._last.update(dict.fromkeys(numbers, time.monotonic()))
        return numbers

    def ago(self, number: object) -> float | None:
        """Seconds since that signal last came; None: it never did."""
        last = self._last.get(number) if isinstance(number, int) else None
        return None if last is None else time.monotonic() - last
