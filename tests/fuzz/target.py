"""What is fuzzed, and one input fed to it under bounds of time and memory."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

SECONDS = 5.0
"""Of the processor for one input, within ``alarms``."""
WAIT = 60.0
"""Seconds for one input by the clock: others may work on this machine, too."""
MEMORY = 256 << 20
"""Bytes that one input may add to the most that the process has ever had."""

Feed = Callable[[bytes], object]


@dataclass
class Room:
    """Where a target keeps files, and what is ended after it."""

    folder: Path
    stack: ExitStack

    def file(self, name: str) -> Path:
        """A path in the folder; its parents are there."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True)
class Target:
    """A reader of what comes from outside.

    ``open`` makes what takes one input. It raises ``AssertionError`` where something was lost, and nothing but ``allowed`` besides: the errors
    that its caller turns into one clear message. ``examples`` are what it really meets.
    """

    name: str
    open: Callable[[Room], Feed]
    examples: tuple[bytes, ...]
    allowed: tuple[type[Exception], ...] = ()


def pure(name: str, feed: Feed, examples: tuple[bytes | str, ...], allowed: tuple[type[Exception], ...] = ()) -> Target:
    """A target that keeps nothing."""
    return Target(name, lambda _: feed, encoded(*examples), allowed)


def encoded(*examples: bytes | str) -> tuple[bytes, ...]:
    """Texts as they are stored."""
    return tuple(e if isinstance(e, bytes) else e.encode("utf-8", "surrogatepass") for e in examples)


def text(data: bytes) -> str:
    """As the output of Slurm's commands is read."""
    return data.decode(errors="replace")


@contextlib.contextmanager
def opened(target: Target) -> Iterator[Feed]:
    """The target's feed, in a folder and an environment of its own."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ))
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # fsync takes no time there
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spotburst-fuzz-", dir=memory)))
        yield target.open(Room(folder, stack))


@dataclass(frozen=True)
class Fault:
    """What one input did. ``kind``: ``traceback``, ``hang``, ``memory`` or ``loss``; ``place``: the same for the same fault."""

    kind: str
    place: str
    data: bytes = field(repr=False)
    told: str = field(default="", repr=False)


class _Hang(BaseException):
    """No ``except Exception`` takes it for its own."""


def _too_long(*_: object) -> None:
    raise _Hang


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """Within this an input that takes too long is broken off. In the main thread, where nobody else wants SIGALRM (pytest-timeout does)."""
    before = [signal.signal(number, _too_long) for number in (signal.SIGALRM, signal.SIGPROF)]
    try:
        yield
    finally:
        for number, handler in zip((signal.SIGALRM, signal.SIGPROF), before, strict=True):
            signal.signal(number, handler)


def _bound(seconds: float, wait: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, wait)


def attempt(target: Target, feed: Feed, data: bytes) -> Fault | None:
    """Feed one input; what is wrong with how it went."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bounded = signal.getsignal(signal.SIGALRM) is _too_long
    try:
        if bounded:
            _bound(SECONDS, WAIT)
        feed(data)
    except _Hang as error:
        return _fault("hang", error, data)
    except target.allowed as error:
        if not str(error).strip():
            return _fault("traceback", error, data)
    except AssertionError as error:
        return _fault("loss", error, data)
    except MemoryError as error:
        return _fault("memory", error, data)
    except Exception as error:
        return _fault("traceback", error, data)
    finally:
        if bounded:
            _bound(0.0, 0.0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) << 10
    if grown > MEMORY:
        return Fault("memory", "growth", data, f"{grown >> 20} MiB more than ever before")
    return None


def _fault(kind: str, error: BaseException, data: bytes) -> Fault:
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in f.filename and "/tests/fuzz/target" not in f.filename]  # fmt: skip
    at = ours[-1] if ours else None
    place = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}" if at else type(error).__name__
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Fault(kind, place, data, told[-6000:])
