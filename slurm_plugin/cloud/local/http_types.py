"""A request to the metadata service and its answer. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """As received; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    """``can_wait``: the client may wait for this value to change. ``control``: what the request itself sets off."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    can_wait: bool = False
    control: Mapping[str, Any] | None = None


def text(body: str, status: int = 200) -> Reply:
    """A plain-text answer."""
    return Reply(status, body, {"Content-Type": "text/plain"})
