"""Durations as people write them, in options and in burst.yaml."""

from __future__ import annotations

import re

LONGEST = 10_000 * 86400.0
"""Seconds: more than any job lives, and few enough to reckon with."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """``"30s"``, ``"10m"``, ``"1.5h"``, ``"1d"`` or a number of seconds, to seconds. Raises ``ValueError`` that says how to write it."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number with s, m, h or d, such as 30s or 10m")
    seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    if seconds > LONGEST:
        raise ValueError(f"{text[:20]!r} is too long: write at most {LONGEST / _SECONDS['d']:.0f}d")
    return seconds
