"""What was asked of Compute Engine, written to disk before it is asked, so that a retry after a crash repeats the call.

The request id makes the same call safe to repeat, but who was in the call can't be derived again: some of its launches may no longer be
wanted. One small file a call, ``<state_dir>/launches/<provider>/<request id>.json``, kept for a day.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.noted import is_moment, is_texts, write_noted

KEEP = 86400.0


@dataclass(slots=True)
class Call:
    """One bulk insert. ``members``: launch id to node; ``zone`` "" for a regional one; ``asked``: Unix seconds of the first try."""

    request_id: str
    members: dict[str, str]
    nodeset: str
    offering_id: str
    zone: str
    instance_type: str
    market: str
    whole: bool
    """All or nothing."""
    notice: bool
    """The longer preemption notice is asked for."""
    asked: float
    operation: str = ""
    done: bool = False
    made: dict[str, str] = field(default_factory=dict)
    """Launch id to zone, of those that came."""
    refused: dict[str, tuple[str, str, int | None, float | None]] = field(default_factory=dict)
    """Launch id to the error that it is refused for: code, text, HTTP status, limit."""


def request_id(members: Mapping[str, str], number: int) -> str:
    """The same for the same launches and number of the try, whatever became of the journal."""
    first = min(members)
    return str(uuid.uuid5(uuid.UUID(launch_ids.base_of(first)), f"{number} {' '.join(sorted(members))}"))


class Journal:
    """The calls of one provider. Safe in several threads. Raises ``CloudUnavailable`` where the disk fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._calls: dict[str, Call] | None = None
        self._of: dict[str, dict[str, Call]] = {}
        """Launch id to its calls by request id: one batch may be some thousand launches."""

    def calls(self) -> list[Call]:
        """All of them, oldest first."""
        with self._lock:
            return sorted(self._all().values(), key=lambda call: call.asked)

    def of(self, launch_id: str) -> list[Call]:
        """The calls that it was in, oldest first."""
        with self._lock:
            self._all()
            return sorted(self._of.get(launch_id, {}).values(), key=lambda call: call.asked)

    def save(self, call: Call) -> None:
        """On disk when this returns."""
        write_noted(self.folder / f"{call.request_id}.json", asdict(call))
        with self._lock:
            self._all()
            self._take(call)

    def forget(self, before: float) -> None:
        """Drop calls that were asked before that (Unix seconds)."""
        for call in self.calls():
            if call.asked < before:
                (self.folder / f"{call.request_id}.json").unlink(missing_ok=True)
                with self._lock:
                    self._all().pop(call.request_id, None)
                    for launch_id in call.members:
                        left = self._of.get(launch_id, {})
                        left.pop(call.request_id, None)
                        if not left:
                            self._of.pop(launch_id, None)

    def _take(self, call: Call) -> None:
        if self._calls is not None:
            self._calls[call.request_id] = call
        for launch_id in call.members:
            self._of.setdefault(launch_id, {})[call.request_id] = call

    def _all(self) -> dict[str, Call]:
        if self._calls is None:
            self._calls = {}
            for path in sorted(self.folder.glob("[0-9a-f]*.json")) if self.folder.is_dir() else ():
                call = _read(path)
                if call is not None:
                    self._take(call)
        return self._calls


def _read(path: Path) -> Call | None:
    """None for what is no call: machines that it told of are found by their labels."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        call = Call(**{**data, "refused": {k: tuple(v) for k, v in data["refused"].items()}})
        return call if call.request_id == path.stem and call.members and _fits(call) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _fits(call: Call) -> bool:
    """Whether it holds what its fields say."""
    words = (call.nodeset, call.offering_id, call.zone, call.instance_type, call.market, call.operation)
    return (
        is_texts(call.members)
        and is_texts(call.made)
        and is_moment(call.asked)
        and all(isinstance(word, str) for word in words)
        and all(
            len(told) == 4 and isinstance(told[0], str) and isinstance(told[1], str) for told in call.refused.values()
        )
    )
