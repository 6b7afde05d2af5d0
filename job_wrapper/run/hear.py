"""What a program said, as events. Words that can't be understood are passed over (protocol.py). Pure."""

from __future__ import annotations

from typing import Any, TypeGuard

from job_wrapper.run import events as ev
from job_wrapper.run.counters import counters_of
from job_wrapper.store.io_types import ObjectRef
from job_wrapper.store.paths import is_key

MAX_PARTS = 4096
LONGEST_RESTORE = 1e9
"""Seconds."""


def hear(client: int, message: dict[str, Any] | None) -> list[ev.Event]:
    """None: the connection is gone."""
    if message is None:
        return [ev.Left(client)]
    kind, seq = message["type"], message.get("seq")
    if kind == "checkpoint.subscribe":
        return [ev.Subscribed(client)]
    if kind == "checkpoint.ack" and _whole(seq):
        return [ev.Acked(client, seq)]
    if kind == "checkpoint.failed" and _whole(seq):
        return [
            ev.Declined(
                client, seq, str(message.get("error") or "no reason given")[:2000], str(message.get("kind") or "")[:100]
            )
        ]
    if kind == "checkpoint.staged" and _whole(seq):
        seconds = seconds_of(message)
        return [] if seconds is None else [ev.Staged(client, seq, seconds)]
    if kind in ("restore.done", "progress"):
        counters = counters_of(message)
        completed, total = (None, None) if counters is None else counters
        return [ev.Going(kind == "restore.done", completed, total)]
    if kind == "checkpoint.commit" and (seq is None or _whole(seq)):
        step, parts = message.get("step"), _parts(message.get("parts"))
        if parts is not None and (step is None or _whole(step)):
            return [ev.CommitAsked(client, seq, step, parts)]
    return []


def seconds_of(message: dict[str, Any]) -> float | None:
    """How long the program's restore took, as ``restore.done`` tells it; None for what is no such time."""
    seconds = message.get("seconds")
    fits = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= LONGEST_RESTORE
    return float(seconds) if fits and seconds is not None else None


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parts(value: object) -> dict[str, ObjectRef] | None:
    if not isinstance(value, dict) or not value or len(value) > MAX_PARTS:
        return None
    parts = {}
    for name, ref in value.items():
        if not isinstance(ref, dict) or not is_key(ref.get("key")) or not _whole(ref.get("length")):
            return None
        if not isinstance(ref.get("checksum"), str):
            return None
        parts[name] = ObjectRef(ref["key"], ref["length"], ref["checksum"])
    return parts
