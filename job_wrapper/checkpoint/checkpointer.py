"""`Checkpointer`: the save boundary of a training loop."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Literal, NoReturn

import torch

from job_wrapper import program
from job_wrapper.checkpoint import outage, process, resume
from job_wrapper.checkpoint.committer import Committer, DirectCommitter, find_committer
from job_wrapper.checkpoint.members import coming
from job_wrapper.checkpoint.overlap import Overtaken
from job_wrapper.checkpoint.restorable import FORMAT, Restorable
from job_wrapper.checkpoint.saver import Replaced, Save
from job_wrapper.checkpoint.staging import Arena, arena_for
from job_wrapper.checkpoint.state import encode
from job_wrapper.client import Committed, Request
from job_wrapper.errors import (
    CheckpointFailed,
    ExitCode,
    Fenced,
    SpotburstError,
)

log = logging.getLogger("spotburst")

PART = "rank-0"


class Checkpointer(Restorable):
    """Restores the state it is given from the run's newest good checkpoint, and saves it between steps when asked.

    Keyword arguments name the state: anything with ``state_dict`` and ``load_state_dict`` (model, optimizer, scheduler, GradScaler, …),
    tensors, arrays, lists, dicts and random generators, which are set in place; None is passed over. Plain values (numbers,
    strings, tuples) are found again in ``values``, where the program may change them. Saved beside them: the step, the
    random generators of Python, NumPy and torch, and the tracker's run id.

    ``data``: the `ResumableSampler`, a DataLoader that has one, or another loader with a state_dict of its own; False says that there is
    none (leaving it out, too, but a resume then warns that the epoch begins anew). ``config``: a dict,
    dataclass or Namespace; a resume with another one raises ``ConfigChanged`` unless ``allow_config_change`` or
    ``SPOTBURST_ALLOW_CONFIG_CHANGE`` names the keys that differ; ``changed`` then holds them (the state keeps what it was saved with, so
    it is for the program to act on them). ``total`` is the number of steps, for ``spotburst describe``.

    Where to: the wrapper's run under ``spotburst run``; else ``uri`` and ``run`` (or ``SPOTBURST_URI`` and ``SPOTBURST_RUN``, if both are
    set), every ``interval`` seconds, the newest ``keep``; else nowhere, and everything here is a no-op.

    ``staging=False`` saves the memory for a copy of the state: training then stops until a save is committed. ``staging="overlap"``
    copies parameters on the processor, and what their optimizers hold for them, while the next forward and backward run; the optimizer's
    ``step()`` waits for it. If anything else writes them meanwhile, the kernel tells, the copy is thrown away, the next step is
    saved, and from then on all is copied at once. That needs Linux 6.7; elsewhere it is ``staging=True``, with a warning.

    Use it as a context manager, or call ``close()`` at the end, so that the final state is in the last commit. Call
    all methods in one thread.

    Raises ``UnsupportedState`` for state that can't be saved, ``ConfigChanged``, ``RestoreFailed``, and the store's errors.
    """

    def __init__(
        self,
        *,
        data: Any = None,
        config: Any = None,
        allow_config_change: Collection[str] = (),
        total: int | None = None,
        uri: str | None = None,
        run: str | None = None,
        endpoint_url: str = "",
        interval: float | None = 600.0,
        keep: int = 3,
        committer: Committer | None = None,
        restore: bool = True,
        staging: bool | Literal["overlap"] = True,
        **state: Any,
    ) -> None:
        process.plain_errors()
        super().__init__(data, config, allow_config_change, state)
        self._total = total
        self._arena: Arena | None = None
        self._saving: Save | None = None
        self._base: Any = None
        self._committed: int | None = None
        self._asked = False
        self._unanswered: int | None = None
        """The request of a save that has to be made once more."""
        self._closed = False
        self._failure: BaseException | None = None
        self._undo_signals: Callable[[], None] = lambda: None
        self._committer = committer or find_committer(uri, run, endpoint_url=endpoint_url, keep=keep, interval=interval)
        self._attention = self._prepare_next = self._committer is not None
        if self._committer is None:
            return
        process.refuse_many_ranks()
        self._arena = arena_for(staging, [one for one in state.values() if isinstance(one, torch.optim.Optimizer)])
        # What can't be saved is said now, not at the first reclaim; but asking a loader makes its iterator, workers and all.
        unasked = () if self._sampler else ("data",)
        encoded = encode(self._tree(but=unasked))
        if isinstance(self._committer, DirectCommitter):
            direct = self._committer
            self._undo_signals = process.on_signals(
                lambda number: direct.ask(urgent=True, stop=True, reason=f"signal {number}")
            )
        if restore:
            try:
                self.restore()
            except BaseException:
                self._closed = True
                self._release()
                raise
        if self._arena is not None:
            encoded = encode(self._tree(but=unasked)) if self.restored else encoded
            self._arena.prepare_beside(encoded, coming(self._members.values()))
        atexit.register(self._left_open)

    # The program's side

    @property
    def active(self) -> bool:
        """Whether checkpoints go anywhere."""
        return self._committer is not None

    def step(self, batches: int = 1) -> None:
        """A training step is finished: the one place where state is saved. Call it after optimizer and scheduler have stepped.

        ``batches`` is how many the step consumed from the loader. Saves if a checkpoint is asked for: an ordinary one goes on in the
        background, an urgent one is waited for. Raises ``SystemExit`` when the program must not go on (the node goes away and the
        state is committed, or another attempt holds the run), and ``CheckpointFailed`` for a save that failed since the last step.
        """
        self.completed += 1
        if self._advance is not None:
            self._advance(batches)
        if self._committer is not None and (self._attention or self._committer.attention):
            self._attend(self._committer)

    def log(self, **values: Any) -> None:
        """Tell values of the step being done, before its ``step()``: ``log(loss=loss.item())``. They are the curves of ``spotburst report``.

        Kept under ``spotburst run`` only; see ``job_wrapper.log``.
        """
        program.log(self.completed + 1, **values)

    def save(self) -> None:
        """Ask for a checkpoint: it is made, in the background, at the next ``step()``."""
        self._asked = self._attention = True

    def close(self) -> None:
        """Wait for a save in flight, and save the final state unless it is saved. Raises as ``step`` does. Once is enough."""
        if self._closed:
            return
        self._closed = True
        try:
            committer = self._committer
            if committer is None:
                return
            self._wait_in_flight()
            self._raise_failure()
            if committer.stopped:
                self._leave(committer)
            if self._sampler is not None:
                self._sampler.leave()
            request = committer.take()
            if self._committed != self.completed or request is not None:
                self._save_last(committer, request)
        finally:
            self._release()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error the state may be in the middle of a step, so nothing more is saved; a save in flight is finished."""
        if error is None:
            self.close()
            return
        if not self._closed:
            self._closed = True
            try:
                self._wait_in_flight()
            finally:
                self._release()

    # Restoring

    def restore(self) -> bool:
        """Restore the newest checkpoint that verifies; the constructor has done it unless it was told not to. False for a new run.

        Everything is read and verified before anything is set. Damaged ones are reported and passed over for the next older.
        """
        committer = self._committer
        if committer is None or self.restored:
            return self.restored
        started = time.monotonic()
        point = committer.restore_point()
        own = {} if point is None else encode({"state": self._captured(lambda one: one.in_place)}).tensors
        found = resume.newest(committer, PART, FORMAT, own, point)
        if found is None:
            self._tell_progress(committer)
            return False
        loaded, point = found
        self._base = loaded.part
        self._set(committer, loaded, f"the checkpoint of step {loaded.tree['completed']} (log entry {point.entry})")
        self.restored = True
        self._committed = self.completed
        committer.restore_done(point.entry, time.monotonic() - started)
        self._tell_progress(committer)
        return True

    # Saving

    def _attend(self, committer: Committer) -> None:
        self._attention = False  # first: what comes from now on sets it again
        self._raise_failure()
        if committer.stopped:
            self._leave(committer)
        request = committer.request()
        if request is None and not self._asked:
            if self._prepare_next and self._arena is not None:
                self._arena.prepare_beside(encode(self._tree()))
            self._prepare_next = False
            return
        saving = self._saving
        if saving is not None:
            if request is None or not request.urgent:
                return  # the end of that save raises attention again
            saving.settle(request.deadline)
            self._raise_failure()
            if committer.stopped:
                self._leave(committer)
        self._save(committer, committer.take())

    def _save(self, committer: Committer, request: Request | None) -> None:
        self._asked = False
        self._made(committer, request, waited=request is not None and request.urgent)

    def _save_last(self, committer: Committer, request: Request | None) -> None:
        """The final state: a store that is away is waited for."""
        waiting = outage.Waiting(committer)
        while True:
            save = self._made(committer, request, waited=True)
            if save.error is None or not outage.waited_out(committer, save.error):
                return
            waiting.pause(save.error)
            if committer.stopped:
                self._leave(committer)
            request = committer.take()

    def _made(self, committer: Committer, request: Request | None, *, waited: bool) -> Save:
        """Begun, and waited for where somebody waits or where the program's own memory is read."""
        try:
            save = self._begin(committer, request, waited=waited)
            if waited or save.live:
                self._wait_for(committer, save)
        except BaseException:
            # Ctrl-C comes at any line. A program that catches it goes on, and changes what a save that is not waited for would read.
            if (saving := self._saving) is not None and saving.live:
                saving.give_up()
            raise
        return save

    def _begin(self, committer: Committer, request: Request | None, *, waited: bool) -> Save:
        """Stage and start: the only time that training stops. What is waited for anyway needs no staging."""
        self._prepare_next = False
        began = time.monotonic()
        seq, self._unanswered = request.seq if request else self._unanswered, None
        arena = None if waited else self._arena
        try:
            with process.no_garbage_collection():
                save = Save(committer, PART, self.completed, seq, encode(self._tree()), arena, self._base, self._ended)
                self._saving = save
                save.start(began)
        except (CheckpointFailed, MemoryError) as error:
            if seq is not None:
                committer.failed(seq, str(error))
            raise process.as_failed(error, self.completed) from error
        return save

    def _ended(self, save: Save) -> None:
        """In the save's thread, at its end."""
        if self._arena is not None and not save.live:
            self._arena.release()
        if save.error is None:
            self._base = save.part
            self._committed = save.step
            self._tell_progress(self._committer)
        elif isinstance(save.error, Overtaken):
            log.warning("step %d is in no checkpoint, the next step will be: %s", save.step, save.error)
            self._unanswered, self._asked = save.seq, True
        elif outage.waited_out(save.committer, save.error):
            log.warning("step %d is in no checkpoint yet, the one before stands: %s", save.step, save.error)
        elif not isinstance(save.error, Replaced):
            self._failure = save.error
        self._saving = None
        self._attention = True

    def _wait_for(self, committer: Committer, save: Save) -> Committed | None:
        save.wait()
        self._raise_failure()
        if committer.stopped or (save.outcome is not None and save.outcome.stop):
            self._leave(committer)
        return save.outcome

    def _wait_in_flight(self) -> None:
        saving = self._saving
        if saving is not None:
            saving.wait()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if isinstance(failure, Fenced):
            self._end(ExitCode.FENCED)
        raise process.as_failed(failure, self.completed) from failure

    def _leave(self, committer: Committer) -> NoReturn:
        self._end(ExitCode.FENCED if committer.fenced else ExitCode.REQUEUED)

    def _end(self, code: ExitCode) -> NoReturn:
        saving = self._saving
        if saving is not None:
            saving.give_up()
        raise SystemExit(int(code))

    def _tell_progress(self, committer: Committer | None) -> None:
        if committer is not None and self._total is not None:
            try:
                committer.progress(self.completed, self._total)
            except SpotburstError as error:
                log.debug("progress not told: %s", error)

    def _release(self) -> None:
        atexit.unregister(self._left_open)
        self._undo_signals()
        if self._arena is not None:
            self._arena.close()
        if self._committer is not None:
            self._committer.close()

    def _left_open(self) -> None:
        if not self._closed and self.completed > (self._committed or 0):
            process.say_left_open(self.completed, self._committed)
