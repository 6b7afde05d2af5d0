"""What `job_wrapper` offers to Python programs that keep their state in files. Without a wrapper these do nothing."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from job_wrapper.client import ConnectionLost, shared
from job_wrapper.counted import counted
from job_wrapper.errors import CheckpointFailed, UsageError
from job_wrapper.protocol import SOCKET_VARIABLE

if TYPE_CHECKING:
    from job_wrapper.curves import Gathered

_save: Callable[[], object] | None = None
_gathered: Gathered | None = None


def on_request(save: Callable[[], object]) -> None:
    """Register how this program writes its state. ``requested()`` then calls it whenever a checkpoint is asked for."""
    global _save
    _save = save
    shared()


def requested() -> bool:
    """Call between steps: whether a checkpoint is asked for.

    With ``on_request`` it saves too: it calls ``save()``, waits until the state directories are committed and returns True; where
    the capacity goes away it ends the program (``SystemExit``) after the commit. Without, save and then call ``saved()``.
    """
    connection = shared()
    if connection is None:
        return False
    if connection.stop:
        raise SystemExit(0)
    if connection.request is None:
        return False
    if _save is None:
        return True
    request = connection.request
    try:
        _save()
    except Exception as error:
        connection.failed(request.seq, f"{type(error).__name__}: {error}")
        raise
    saved()
    return True


def saved() -> None:
    """The state directories hold what a checkpoint needs: commit them. Returns when that is done and the program may go on.

    Does nothing when no checkpoint is asked for. A commit that fails is not raised: the wrapper says so, and asks again.
    """
    connection = shared()
    request = connection.take_request() if connection is not None else None
    if connection is None or request is None:
        return
    try:
        committed = connection.ack(request.seq)
    except CheckpointFailed:
        return
    if committed.stop:
        raise SystemExit(0)


def state_dir(index: int = 0) -> str | None:
    """The state directory that the wrapper checkpoints (its absolute path), or None without one."""
    paths = os.environ.get("SPOTBURST_STATE_DIRS", os.environ.get("SPOTBURST_STATE_DIR", "")).split(os.pathsep)
    if index < 0 or index >= len(paths):
        raise UsageError(
            f"state_dir({index}): the wrapper was given {counted(len(paths), 'state directory', 'state directories')}"
        )
    return paths[index] or None


def restored() -> bool:
    """Whether the state directories were restored from a checkpoint for this attempt."""
    return os.environ.get("SPOTBURST_RESTORED") == "1"


def progress(completed: int, total: int | None = None) -> None:
    """Tell how much of the work is done, in units of the program's own; the next attempt gets it by ``completed()``.

    It is kept with the next checkpoint, or by itself with ``--continuity restartable``. Cheap enough for every second, not for every
    millisecond. Raises ``UsageError`` for what is no count, ``ConnectionLost`` if the wrapper is gone.
    """
    from job_wrapper.run.counters import counters_of
    from job_wrapper.tell import tell

    if counters_of({"completed": completed}) is None or (
        total is not None and counters_of({"completed": total}) is None
    ):
        raise UsageError(f"progress({completed!r}, {total!r}): give whole numbers from 0 on")
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return
    try:
        tell(completed, total, path)
    except OSError as error:
        raise ConnectionLost(f"{SOCKET_VARIABLE}={path}: the wrapper is gone ({error.strerror or error})") from error


def log(step: int, /, **values: Any) -> None:
    """Tell values of a step, such as ``log(step, loss=0.31)``: the curves of ``spotburst report`` are made of them.

    May be called at each step: what is told within a second is kept as its mean. At most 8 names; a value that is no finite number is a
    gap in its curve. Never waits for the store, and does nothing where the wrapper is gone. Raises ``UsageError`` for what is no number.
    """
    global _gathered
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return
    if _gathered is None:
        from job_wrapper.curves import Gathered

        _gathered = Gathered()
        atexit.register(_log_rest)
    try:
        message = _gathered.add(int(step), values)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last is torch's, of a complex number
        raise UsageError(f"log({step!r}, {', '.join(values)}): give a whole number and numbers ({error})") from error
    _send(message, path)


def _log_rest() -> None:
    if _gathered is not None:
        _send(_gathered.due(), os.environ.get(SOCKET_VARIABLE))


def _send(message: dict[str, Any] | None, path: str | None) -> None:
    if message is not None and path:
        from job_wrapper.tell import send

        with contextlib.suppress(OSError):  # curves are no reason to stop
            send(message, path)


def completed() -> int:
    """How much was completed by the checkpoint that this attempt goes on from: 0 for a new run, and without a wrapper."""
    text = os.environ.get("SPOTBURST_COMPLETED", "")
    return int(text) if text.isascii() and text.isdigit() else 0
