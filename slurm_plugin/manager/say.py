"""The manager's log: one JSON object a line on stderr (text on a terminal), with job, node, attempt, epoch and launch_id as keys.

What is said again and again is said seldom: see ``Seldomly``. What goes on (``Once``) is said when it begins and when it is over.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import structlog

log = structlog.get_logger("spotburst.manager")

BURST = 5
"""Lines of one kind about one thing that are written at once."""
AGAIN = 60.0
"""Seconds after which one more of them is written, and a fault that goes on is said again, if its text has changed."""
REMEMBERED = 10_000
"""Kinds of lines, after which those of past minutes are forgotten."""
ABOUT = ("job", "node", "launch_id", "offering", "provider", "path")
"""Keys that tell what a line is about; the others are what is said of it."""


class Seldomly:
    """Lets pass ``BURST`` lines of one kind about one thing, then one every ``AGAIN`` seconds, which tells how many were ``left_out``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[tuple[str, ...], tuple[float, int, int]] = {}
        """When its minute began, how many were written in it, how many left out since the last that was written."""

    def __call__(self, logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """For structlog."""
        kind = (method, str(line.get("event")), *(str(line.get(key, "")) for key in ABOUT))
        now = self._clock()
        with self._lock:
            began, written, left_out = self._said.pop(kind, (now, 0, 0))
            if now - began >= AGAIN:
                # Of what has never stopped one line is enough.
                began, written = now, BURST - 1 if left_out else 0
            if written >= BURST:
                self._said[kind] = began, written, left_out + 1
                raise structlog.DropEvent
            self._said[kind] = began, written + 1, 0
            if len(self._said) > REMEMBERED:
                self._said = {k: said for k, said in self._said.items() if now - said[0] < AGAIN}
        if left_out:
            line["left_out"] = left_out
        return line


class Whereabouts:
    """Adds what a line's reader would have to look up: the jobs on its node, its job's attempt (Slurm's restart count) and epoch (the run's log)."""

    def __init__(self) -> None:
        self._jobs_on: Mapping[str, str] = {}
        self._attempts: Mapping[str, int] = {}
        self._epochs: Mapping[str, int] = {}

    def know(self, jobs: Iterable[tuple[str, int, Iterable[str]]], epochs: Mapping[str, int]) -> None:
        """Of the present pass: (job, restart count, nodes it has) of each job that has any or waits, and the epochs that are known, by job."""
        on: dict[str, list[str]] = {}
        attempts = {}
        for job, attempt, nodes in jobs:
            attempts[job] = attempt
            for node in nodes:
                on.setdefault(node, []).append(job)
        self._jobs_on = {node: ",".join(found) for node, found in on.items()}
        self._attempts, self._epochs = attempts, epochs

    def __call__(self, logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """For structlog."""
        if "job" not in line and (job := self._jobs_on.get(str(line.get("node", "")))):
            line["job"] = job
        job = str(line.get("job", ""))
        if job in self._attempts:
            line.setdefault("attempt", self._attempts[job])
        if job in self._epochs:
            line.setdefault("epoch", self._epochs[job])
        return line


whereabouts = Whereabouts()


def set_up_logging() -> None:
    """For this process. systemd's journal, or whoever started us, keeps what is written."""
    tty = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            whereabouts,
            Seldomly(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if tty else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


class Once:
    """Says a lasting fault when it begins and when it is over; not in each pass. Safe to use from several threads."""

    def __init__(self) -> None:
        self._faults: dict[str, tuple[str, float]] = {}

    def fault(self, what: str, text: str, **keys: Any) -> bool:
        """``what`` is not well. True if that was said now."""
        now = time.monotonic()
        said, at = self._faults.get(what, ("", float("-inf")))
        if text != said and now - at >= AGAIN:
            self._faults[what] = text, now
            log.warning(f"{what}: {text}", **keys)
            return True
        return False

    def well(self, what: str) -> None:
        """``what`` is well (again)."""
        if self._faults.pop(what, None) is not None:
            log.info(f"{what}: well again")

    def lasting(self) -> tuple[str, ...]:
        """What is not well now, by name."""
        return tuple(self._faults.copy())
