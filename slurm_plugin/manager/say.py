"""The manager's log: one JSON object a line on stderr (text on a terminal), with job, node, epoch and launch_id as keys."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import structlog

log = structlog.get_logger("spotburst.manager")


def set_up_logging() -> None:
    """For this process. systemd's journal, or whoever started us, keeps what is written."""
    tty = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if tty else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


AGAIN = 60.0
"""Seconds after which a fault that goes on is said again, if its text has changed."""


class Once:
    """Says a lasting fault when it begins and when it is over; not in each pass. Safe to use from several threads."""

    def __init__(self) -> None:
        self._faults: dict[str, tuple[str, float]] = {}

    def fault(self, what: str, text: str, **keys: Any) -> None:
        """``what`` is not well."""
        now = time.monotonic()
        said, at = self._faults.get(what, ("", float("-inf")))
        if text != said and now - at >= AGAIN:
            self._faults[what] = text, now
            log.warning(f"{what}: {text}", **keys)

    def well(self, what: str) -> None:
        """``what`` is well (again)."""
        if self._faults.pop(what, None) is not None:
            log.info(f"{what}: well again")
