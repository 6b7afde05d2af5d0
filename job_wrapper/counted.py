"""A number with its word, as messages have them."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """``1 node``, ``2 nodes``, ``0 nodes``. ``many``: of a word (or words) whose plural has no plain s at its end."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
