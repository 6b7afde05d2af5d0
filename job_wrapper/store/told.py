"""Values out of a log entry's body: whoever can write to the store may have put anything there, and what is shown must not fail for it. Pure."""

from __future__ import annotations

from job_wrapper.notice.types import LAST_SECOND
from job_wrapper.protocol import MOST


def seconds(value: object) -> float | None:
    """A moment in Unix seconds, or so many seconds; None for anything else, and for what no calendar has."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LAST_SECOND:  # nor is NaN
        return None
    return float(value)


def whole(value: object) -> int | None:
    """A step or a count, which may be below 0; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST else None
