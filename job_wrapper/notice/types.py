"""One stable record of a notice, whoever gives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

Kind = Literal["reclaim", "stop", "hibernate", "rebalance", "maintenance", "preempt", "signal"]
"""``reclaim``, ``stop`` and ``hibernate`` take the node away; ``rebalance`` and ``maintenance`` warn; ``preempt`` and ``signal`` are
Slurm's."""

TAKES_AWAY: frozenset[str] = frozenset({"reclaim", "stop", "hibernate", "preempt"})
"""Kinds of notice after which an attempt can't go on here; the others only warn."""

TAKES_NODE: frozenset[str] = TAKES_AWAY - {"preempt"}
"""Those after which the node itself is gone, for whatever job."""

LAST_SECOND = 253402300799.0
"""The end of the year 9999: a later deadline can't be written as a date."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning that capacity goes away.

    ``source_id`` is stable: the same event seen twice has the same id (never derived from the clock of the one who looks).
    ``deadline`` is Unix seconds, or None where the source does not tell; ``arrived`` is when this node first saw it.
    """

    provider: str
    kind: Kind
    source_id: str
    arrived: float
    deadline: float | None = None
    text: str = ""

    def to_json(self) -> str:
        """One line of JSON, as ``/run/spotburst/notice.json`` holds it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Notice:
        """Parse; raises ``ValueError`` that names what is wrong."""
        try:
            data: Any = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        if not isinstance(data, dict):
            raise ValueError("a notice is a JSON object")
        kind: Any = data.get("kind")
        if kind not in get_args(Kind):
            raise ValueError(f"notice kind {kind!r} is none of {', '.join(get_args(Kind))}")
        for name in ("provider", "source_id"):
            if not isinstance(data.get(name), str):
                raise ValueError(f"{name} is {data.get(name)!r}, not a text")
        deadline = data.get("deadline")
        return cls(
            provider=data["provider"],
            kind=kind,
            source_id=data["source_id"],
            arrived=_seconds("arrived", data.get("arrived")),
            deadline=None if deadline is None else _seconds("deadline", deadline),
            text=str(data.get("text", "")),
        )


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, not a time in Unix seconds")
    if not abs(value) <= LAST_SECOND:  # nor is NaN
        raise ValueError(f"{name} is {value!r}: out of range")
    return float(value)


class Watcher(Protocol):
    """Looks for notices in a thread of its own until stopped."""

    def watch(self, emit: Callable[[Notice | None], None], stopped: Callable[[float], bool]) -> None:
        """Call ``emit`` with each new notice, and with None when one is withdrawn.

        ``stopped(seconds)`` waits that long and returns True when the watcher must return. Never raises: a fault of the
        source is logged and looked at again.
        """
        ...
