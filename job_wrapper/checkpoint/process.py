"""What a `Checkpointer` sets up in the process it lives in: signals where no wrapper takes them, and plain words for errors."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import torch

from job_wrapper.errors import CheckpointFailed, ExitCode, SpotburstError, UsageError, may_pass
from job_wrapper.protocol import SOCKET_VARIABLE

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Slurm's grace signals: SIGTERM, or with ``--signal`` most often SIGUSR1."""


def on_signals(hear: Callable[[int], None]) -> Callable[[], None]:
    """Call ``hear(number)`` for the signals that would end the program unsaved; returns what undoes it.

    For a program without the wrapper. ``hear`` must only set a flag. A handler of the program's own is left alone, helpers that it
    forks get the default back, and outside the main thread nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    owner = os.getpid()

    def handler(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == owner:
            hear(number)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, handler)
        signal.siginterrupt(number, False)

    def undo() -> None:
        if os.getpid() != owner or threading.current_thread() is not threading.main_thread():
            return
        for number in taken:
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)

    return undo


def plain_errors() -> None:
    """Let a ``SpotburstError`` that nobody catches end the program with its message and its exit code, not with a traceback."""
    hook = sys.excepthook
    if getattr(hook, "spotburst", False):
        return

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        outage = ended_by_outage(error)
        if not isinstance(error, SpotburstError) and not outage:
            return hook(kind, error, trace)
        print(f"spotburst: {error}", file=sys.stderr, flush=True)
        code = ExitCode.STORE_AWAY if outage or not isinstance(error, SpotburstError) else error.exit_code
        # The interpreter takes SystemExit from a hook as it does from the program.
        raise SystemExit(int(code))

    excepthook.spotburst = True  # type: ignore[attr-defined]
    sys.excepthook = excepthook


def as_failed(error: BaseException, step: int) -> CheckpointFailed:
    """What a save begun by ``step`` raises in the program for ``error``."""
    if isinstance(error, CheckpointFailed):
        return error
    if isinstance(error, MemoryError):
        return CheckpointFailed(f"there is not enough host memory to save the state: {error}. Ask for more (--mem)")
    what = str(error) if isinstance(error, SpotburstError) else f"{type(error).__name__}: {error}"
    return CheckpointFailed(f"a checkpoint begun by step {step} could not be made; the one before it stands. {what}")


def say_left_open(step: int, committed: int | None) -> None:
    """At the end of a program that never closed its `Checkpointer`."""
    print(
        f"spotburst: the program ended without closing its Checkpointer: step {step} is in no checkpoint "
        f"(the last one is of step {committed})",
        file=sys.stderr,
    )


def refuse_many_ranks() -> None:
    """Raises ``UsageError`` in a program of several ranks."""
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UsageError(
            "Checkpointer is for one process; in a program of several ranks use ShardedCheckpointer in its place "
            "(job_wrapper.checkpoint.sharded)"
        )


def ended_by_outage(error: BaseException) -> bool:
    """Whether a program under the wrapper ends for no other reason than that its store is away: the wrapper then brings the job back.

    DCP's ``CheckpointException`` holds what happened on each rank.
    """
    failures = getattr(error, "failures", None)
    causes = [cause for cause, _ in failures.values()] if isinstance(failures, dict) and failures else [error]
    return SOCKET_VARIABLE in os.environ and all(may_pass(cause) for cause in causes)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """The many small objects made inside would set off collections that walk the program's whole heap, and none of them is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def shield_worker(worker: int = 0) -> None:
    """``DataLoader(worker_init_fn=shield_worker)``: keep a loader's worker alive when SIGTERM goes to all of a job's processes.

    Slurm's proctrack/linuxproc and torchrun signal the whole process tree; torch's worker then dies, and its end takes the program
    down before it can save. SIGTERM from the program itself still ends the worker.
    """
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def listen() -> None:
        while True:
            if signal.sigwaitinfo({signal.SIGTERM}).si_pid == parent:
                os._exit(0)

    threading.Thread(target=listen, name="spotburst-shield", daemon=True).start()
