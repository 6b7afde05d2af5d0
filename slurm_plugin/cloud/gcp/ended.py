"""Which machines were ended here, on disk. Compute Engine shows one that is preempted and one that is deleted alike: STOPPING."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from slurm_plugin.cloud.noted import write_noted
from slurm_plugin.errors import CloudUnavailable

KEEP = 3600.0
"""Seconds: longer than a machine takes to end."""


class Ended:
    """By the machine's number. Safe in several threads. Times in Unix seconds by ``clock``."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._lock = threading.Lock()
        self._since = _read(path)

    def __contains__(self, number: int) -> bool:
        return number in self._since

    def note(self, numbers: Collection[int]) -> None:
        """Before they are deleted. A disk that fails holds up no deletion: it is known until the next restart."""
        with self._lock:
            now = self._clock()
            kept = {n: since for n, since in self._since.items() if abs(now - since) < KEEP}
            new = dict.fromkeys((n for n in numbers if n not in kept), now)
            self._since = {**kept, **new}
            if new:
                with contextlib.suppress(CloudUnavailable):
                    write_noted(self._path, [[n, since] for n, since in self._since.items()])


def _read(path: Path) -> dict[int, float]:
    """Nothing where it can't be read: then a machine that ends may be told as preempted once."""
    try:
        return {int(number): float(since) for number, since in json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return {}
