"""What the wrapper and the program say to each other over the events socket: one JSON object a line, both ways.

The wrapper listens on a Unix stream socket in a folder that only its user can enter, and names it in ``SPOTBURST_SOCKET``.
A program in any language needs only ``subscribe``, ``request`` and ``ack``; the rest is what ``job_wrapper.checkpoint`` uses.

Program to wrapper::

    {"type":"checkpoint.subscribe"}                        I will answer requests. Answered by "welcome".
    {"type":"checkpoint.ack","seq":3}                      my state directory is consistent now: save it, commit.
    {"type":"checkpoint.commit","seq":3,"step":120,"parts":{"rank-0":{"key":…,"length":…,"checksum":…}}}
                                                           I have stored these parts under the data prefix: commit them (with
                                                           the state directories, if there are any). "seq" is null for a
                                                           checkpoint that nobody asked for. Answered by committed, failed or fenced.
    {"type":"checkpoint.staged","seq":3,"seconds":0.8}     I go on: my state was copied within so many seconds, and is being written
                                                           behind me (may be left out; an interval of "auto" goes by it).
    {"type":"checkpoint.failed","seq":3,"error":"…","kind":"StoreAway"}
                                                           I could not. "kind" (may be left out) is the typed reason; with "StoreAway"
                                                           the same may work later.
    {"type":"restore.done","entry":7,"seconds":1.2}        the checkpoint of log entry 7 is loaded.
    {"type":"restore.failed","entry":7,"error":"…"}        it is damaged. Answered by another "welcome", with an older one or none.
    {"type":"progress","completed":120,"total":1500}       for describe, and for programs that restart by counters (it needs no
                                                           subscribe: connect, send this line, close).
    {"type":"metrics","step":120,"values":{"loss":0.31}}   for the curves of report (`curves`): up to 8 names, null for what is no
                                                           finite number. It needs no subscribe either.

    {"type":"signal.ask","number":15}                      has the wrapper had that signal too (it needs no subscribe)? Answered by
                                                           "signal": {"type":"signal","ago":0.3 or null}, seconds since it last came.

Wrapper to program::

    {"type":"welcome","run":"c/12/main","uri":"s3://b/p","endpoint_url":"","epoch":3,"data":"c/12/main/data/e00000003",
     "restore":{"entry":7,"epoch":2,"step":120,"manifest":{"key":…,"length":…,"checksum":…}} or null,"interval":600.0,
     "patience":1800.0,"progress":{"completed":120,"total":1500} or null}
    {"type":"checkpoint.request","seq":4,"urgent":true,"deadline":1795982350.0 or null,"reason":"aws reclaim"}
    {"type":"checkpoint.committed","seq":4 or null,"entry":9,"stop":true}
                                                           it is in the log. With "stop" the program must not go on.
    {"type":"checkpoint.failed","seq":4,"error":"…","kind":"StoreAway"}
                                                           nothing was committed; the previous commit stands. "StoreAway": the
                                                           store can't be reached now, and it is asked again at the next interval.
    {"type":"fenced","epoch":5}                            a newer attempt holds the run: stop, write nothing.
    {"type":"stop"}                                        end now, without another checkpoint.

A request stands until it is answered or replaced by one with a higher seq. Unknown types and unknown keys are passed over.
"""

from __future__ import annotations

import json
from typing import Any, TypeGuard

SOCKET_VARIABLE = "SPOTBURST_SOCKET"
COMMITS_VARIABLE = "SPOTBURST_COMMITS"
"""``0`` in programs whose wrapper does not commit: of a step's tasks only rank 0's does."""
MAX_LINE = 1 << 20
"""Longest line accepted, in bytes; a longer one ends that connection."""
MOST = 1 << 62
"""Largest step or count."""


def encode(message: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """One line to a message; None for what is not a JSON object with a ``type`` string."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(message, dict) and isinstance(message.get("type"), str):
        return message
    return None


def is_count(value: object) -> TypeGuard[int]:
    """Whether it may be a step, or how much is done."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
