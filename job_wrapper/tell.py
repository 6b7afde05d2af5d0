"""Words with the wrapper over a connection of their own: ``spotburst progress 40 100``, and what a rank asks about signals."""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from job_wrapper.errors import UsageError
from job_wrapper.protocol import MAX_LINE, SOCKET_VARIABLE, decode, encode

USAGE = "spotburst progress COMPLETED [TOTAL]"
_WAIT = 10.0
"""Seconds that a wrapper is waited for: it never has much to do."""


def connected(path: str, seconds: float) -> socket.socket:
    """A connection to the wrapper, which may have so long to take it. Raises ``OSError`` where it is gone.

    Not with ``settimeout``: Python then makes the socket non-blocking, and Linux refuses at once (EAGAIN) where so many wait already
    as the wrapper's backlog holds: more ranks than that on a node, or a wrapper that stands still for a moment.
    """
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        )
        stream.connect(path)
        # Of what is sent later it is not a bound: that would fail (EAGAIN) where the caller wants to wait.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
        stream.settimeout(seconds)
    except BaseException:
        stream.close()
        raise
    return stream


def tell(completed: int, total: int | None, path: str) -> None:
    """How far the program is. Raises ``OSError`` where the wrapper is gone."""
    send({"type": "progress", "completed": completed, "total": total}, path)


def send(message: dict[str, Any], path: str) -> None:
    """One message over a connection of its own: whoever only tells something is not asked for checkpoints.

    Raises ``OSError`` where the wrapper is gone.
    """
    with connected(path, _WAIT) as stream:
        stream.sendall(encode(message))


def ask_signal(number: int, path: str) -> float | None:
    """Seconds since the wrapper last had that signal; None: never. Raises ``OSError`` where it is gone, or does not know the question."""
    with connected(path, _WAIT) as stream:
        stream.sendall(encode({"type": "signal.ask", "number": number}))
        answer = decode(stream.makefile("rb").readline(MAX_LINE))
    ago = answer.get("ago") if answer is not None else 0.0
    if answer is None or not (ago is None or isinstance(ago, int | float)):
        raise OSError("the wrapper does not tell of signals")
    return ago


def main(arguments: Sequence[str]) -> int:
    """The command. Outside the wrapper it does nothing, so that a script also runs without."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(
            f"Usage: {USAGE}\n\nTell how much of the work is done. The next attempt of this run finds the last committed numbers in\n"
            "SPOTBURST_COMPLETED and SPOTBURST_TOTAL. Without a wrapper it does nothing."
        )
        return 0
    if not 1 <= len(arguments) <= 2 or not all(re.fullmatch(r"[0-9]{1,18}", argument) for argument in arguments):
        error = UsageError(
            f"{'wrong arguments: ' + ' '.join(arguments) if arguments else 'no number given'}. "
            f"Write {USAGE}, both whole numbers, such as `spotburst progress 40 100`"
        )
        print(f"spotburst: {error}", file=sys.stderr)
        return int(error.exit_code)
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return 0
    try:
        tell(int(arguments[0]), int(arguments[1]) if len(arguments) == 2 else None, path)
    except OSError as error:
        print(
            f"spotburst: {SOCKET_VARIABLE}={path}: the wrapper does not answer ({error.strerror or error})",
            file=sys.stderr,
        )
        return 1
    return 0
