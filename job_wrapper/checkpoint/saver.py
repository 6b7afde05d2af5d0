"""One save in flight: the state into the store, then the commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from job_wrapper.checkpoint.committer import Committer
from job_wrapper.checkpoint.overlap import Overtaken
from job_wrapper.checkpoint.staging import Arena
from job_wrapper.checkpoint.state import Encoded
from job_wrapper.checkpoint.streaming import Stream, content_of
from job_wrapper.client import Committed
from job_wrapper.errors import CheckpointFailed, SpotburstError, StoreError, kind_of
from job_wrapper.store import ObjectRef, Part, PartWriter, read_part
from job_wrapper.store.write import BaseGoneError

log = logging.getLogger("spotburst")

FORMAT = 2
"""Version of the layout of this part: large tensors by name, small ones in bundles, and the skeleton under ``SKELETON``."""
SKELETON = ".state.json"
"""No tensor's path in a `Checkpointer`'s state begins with a dot."""


class Replaced(SpotburstError):
    """A save that was given up for a later one."""

    reason = "Replaced"


def settle(done: int, total: int, elapsed: float, left: float | None) -> Literal["wait", "replace"]:
    """What to do with a save in flight when an urgent one is wanted. Pure.

    ``done`` of ``total`` bytes took ``elapsed`` seconds; ``left`` seconds remain until the node goes away, or None where that isn't
    known. Both are saved if both can be. Else the newer one if it can; else the older goes on, for it is nearer to its end.
    """
    if left is None or elapsed <= 0 or done <= 0:
        return "wait"
    speed = done / elapsed
    rest, whole = (total - done) / speed, total / speed
    return "replace" if rest + whole > left >= whole else "wait"


class Content(Protocol):
    """What a save writes."""

    @property
    def total(self) -> int:
        """Bytes."""
        ...

    def copy(self) -> None:
        """Copy the program's state where it is to be copied: when this returns, or raises, it is no longer looked at for that."""
        ...

    def copy_rest(self) -> None:
        """Copy what may be copied while the program goes on, at the same time as ``copy`` or after it, before ``write``."""
        ...

    def write(self, writer: PartWriter, done: Callable[[int], None]) -> None:
        """Into the part, at the same time as ``copy`` or after it, and once more if need be. ``done`` is told bytes, and may raise."""
        ...


class Save:
    """Runs in a thread of its own from ``start`` on. ``done`` is set at its end, whatever that is: then ``outcome`` or ``error`` stands."""

    def __init__(
        self,
        committer: Committer,
        name: str,
        step: int,
        seq: int | None,
        state: Encoded,
        arena: Arena | None,
        base: Part | None,
        ended: Callable[[Save], None],
    ) -> None:
        self.step, self.seq = step, seq
        self._content: Content = content_of(state, arena, step)
        self._skeleton = Encoded(state.skeleton, {})  # holds none of the program's memory
        self.live = isinstance(self._content, Stream)
        """Whether it reads what the program may change once it goes on."""
        self.done = threading.Event()
        self.outcome: Committed | None = None
        self.error: BaseException | None = None
        self.part = base
        """What the next save may point to: the part of the last commit."""
        self.written = 0
        self.total = self._content.total
        self.committer, self._name = committer, name
        self._ended = ended
        self._given_up = False
        self._copied = threading.Event()
        self._started = 0.0
        self._thread = threading.Thread(target=self._run, name="spotburst-save")

    def start(self, began: float) -> None:
        """Begin to write, and copy meanwhile. ``began``: when training stopped, by the monotonic clock.

        Raises what the copying raises; the save has then ended, given up.
        """
        self._started = time.monotonic()
        content = self._content
        try:
            self._thread.start()
        except RuntimeError as error:
            self.error = Replaced("never begun")
            self._ended(self)
            self.done.set()
            raise CheckpointFailed(
                f"there is no thread to save step {self.step} in ({error}): the limit of processes and threads is reached (ulimit -u, pids.max)"
            ) from error
        try:
            content.copy()
            if self.seq is not None and not self.live:
                self.committer.staged(self.seq, time.monotonic() - began)  # before it can be committed
        except BaseException:
            self.give_up()
            self._copied.set()
            self.wait()
            raise
        self._copied.set()

    def give_up(self) -> None:
        """Ask it to end uncommitted; a commit already on its way is not taken back."""
        self._given_up = True

    def wait(self) -> None:
        """Until it has ended. Ctrl-C gets through, and a save that reads the program's own memory is then not committed."""
        try:
            self.done.wait()
        except BaseException:
            if self.live:
                self.give_up()
            raise

    def settle(self, deadline: float | None) -> None:
        """Make way for an urgent save: see the function of this name. ``deadline`` in Unix seconds."""
        left = None if deadline is None else deadline - time.time()
        if settle(self.written, self.total, time.monotonic() - self._started, left) == "replace":
            self.give_up()
        self.wait()

    def _run(self) -> None:
        try:
            self._content.copy_rest()
            reference = self._write()
            self._check()
            self.outcome = self.committer.commit(self.step, {self._name: reference}, self.seq)
            try:
                self.part = read_part(self.committer.store, reference)
            except StoreError:
                self.part = None
        except BaseException as error:
            self._copied.wait()
            self.error = error
            self._report(error)
        finally:
            del self._skeleton, self._content
            self._ended(self)
            self.done.set()

    def _report(self, error: BaseException) -> None:
        if self.seq is not None and not isinstance(error, (Replaced, Overtaken)):
            try:
                self.committer.failed(self.seq, f"{type(error).__name__}: {error}", kind_of(error))
            except SpotburstError:
                return

    def _check(self) -> None:
        if self._given_up:
            raise Replaced(f"the checkpoint of step {self.step} was given up")

    def _progress(self, count: int) -> None:
        self.written += count
        self._check()

    def _write(self) -> ObjectRef:
        try:
            return self._write_beside(self.part)
        except BaseGoneError as error:
            log.warning("%s: all of step %d is written anew", error, self.step)
            self.written = 0
            return self._write_beside(None)

    def _write_beside(self, base: Part | None) -> ObjectRef:
        committer = self.committer
        with PartWriter(committer.store, committer.data_prefix, self._name, base=base) as writer:
            self._content.write(writer, self._progress)
            writer.add_bytes(SKELETON, self._skeleton.to_json())
            self._copied.wait()
            self._check()
            return writer.finish({"kind": "torch", "format": FORMAT, "completed": self.step})
