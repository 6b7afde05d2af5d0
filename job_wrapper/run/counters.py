"""Progress counters: how much of a program's work is done, kept in the run's commits and given to the next attempt.

With ``--continuity restartable`` they are all that a checkpoint holds: enough for a program that works off a list and can begin
anywhere in it, in any language and without files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from job_wrapper.protocol import is_count

ATTRIBUTE = "progress"
"""Attribute of a manifest that holds them."""


class Counters(NamedTuple):
    """``completed`` of ``total`` units of work; ``total`` may not be known."""

    completed: int
    total: int | None = None

    def told(self) -> dict[str, int | None]:
        """As messages and manifests carry it."""
        return {"completed": self.completed, "total": self.total}

    def environment(self) -> dict[str, str]:
        """As the next attempt's program finds it."""
        found = {"SPOTBURST_COMPLETED": str(self.completed)}
        return found if self.total is None else {**found, "SPOTBURST_TOTAL": str(self.total)}


def counters_of(told: object) -> Counters | None:
    """From a message or a manifest's attribute; None for what is not one. Pure."""
    if not isinstance(told, Mapping):
        return None
    completed, total = told.get("completed"), told.get("total")
    if not is_count(completed):
        return None
    return Counters(completed, total if is_count(total) else None)
