"""For programs of one or many ranks: ``dcp.save``, ``dcp.async_save`` and ``dcp.load`` of any state into the run's checkpoints.

::

    import torch.distributed.checkpoint as dcp
    from job_wrapper.checkpoint.dcp import DistributedRun

    run = DistributedRun.open()                       # on every rank, after init_process_group
    state = {"model": …, "optimizer": …, "step": 0}   # get_state_dict(model, optimizer), FSDP, DTensor, plain
    run.load(state)                                   # False for a new run
    while …:
        …                                             # one step
        if run.wanted():                              # the same answer on every rank
            dcp.save(state, storage_writer=run.writer(step))

The number of ranks may differ from attempt to attempt. Everything here that talks between ranks does so in the caller's thread; only
DCP's own ``async_save`` talks in a thread, for which it needs a CPU backend (``init_process_group("cpu:gloo,cuda:nccl")``).
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save, save_state_dict

from job_wrapper.checkpoint import process
from job_wrapper.checkpoint.committer import Committer, DirectCommitter, SocketCommitter, find_committer
from job_wrapper.checkpoint.dcp_reader import RunReader
from job_wrapper.checkpoint.dcp_writer import RunWriter
from job_wrapper.checkpoint.torchrun import end_with_torchrun
from job_wrapper.client import Restore
from job_wrapper.errors import Damaged, ExitCode, NewerFormat, ObjectMissing, RestoreFailed, SpotburstError, UsageError
from job_wrapper.protocol import COMMITS_VARIABLE, SOCKET_VARIABLE
from job_wrapper.store import ObjectStore, open_store

__all__ = ["DistributedRun", "RunReader", "RunWriter"]

log = logging.getLogger("spotburst")
T = TypeVar("T")
_GO_ON, _SAVE, _STOP, _FENCED = range(4)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the rank that commits tells the others."""

    uri: str
    run: str
    endpoint_url: str
    restore: Restore | None


class DistributedRun:
    """The run of a program with any number of ranks. Make it with ``open``.

    One rank of ``group`` holds the right to commit: rank 0, or under wrappers on several nodes the first whose wrapper has it.
    (torchrun's dynamic rendezvous numbers the nodes by their names, Slurm in the order of the job.)
    """

    def __init__(
        self, store: ObjectStore, known: _Known, committer: Committer | None, group: Any, root: int = 0
    ) -> None:
        self.restore = known.restore
        """The checkpoint to begin from; None for a new run."""
        self.uri, self.name = known.uri, known.run
        self._store, self._endpoint_url = store, known.endpoint_url
        self._committer = committer
        self._group = group
        self.root = root
        """The rank of the group that commits."""
        self._writer: RunWriter | None = None
        self._answering: int | None = None

    @classmethod
    def open(
        cls,
        uri: str | None = None,
        run: str | None = None,
        *,
        endpoint_url: str = "",
        keep: int = 3,
        interval: float | None = 600.0,
        group: Any = None,
        committer: Committer | None = None,
    ) -> DistributedRun | None:
        """On all ranks of ``group`` (the default group). Where to, and when None comes back: as for `Checkpointer`.

        What one rank decides holds for all. Raises, on every rank, the store's errors, ``UsageError``, ``RestoreFailed``.
        """
        process.plain_errors()
        root = _committing_rank(committer, group)
        found: list[Committer | None] = [None]

        def look() -> _Known | None:
            mine = committer or find_committer(uri, run, endpoint_url=endpoint_url, keep=keep, interval=interval)
            if mine is None:
                return None
            found[0] = mine
            url = mine._connection.welcome.endpoint_url if isinstance(mine, SocketCommitter) else endpoint_url
            return _Known(mine.uri, mine.run, url, mine.restore_point())

        known = _from_root(look, group, root)
        if known is None:
            return None
        mine = found[0]
        store = mine.store if mine else open_store(known.uri, endpoint_url=known.endpoint_url, prove=False)
        if isinstance(mine, DirectCommitter):
            direct = mine
            process.on_signals(lambda number: direct.ask(urgent=True, stop=True, reason=f"signal {number}"))
        else:
            # Slurm and torchrun signal every rank. One, or the wrapper, has heard it, and all ranks leave together.
            process.on_signals(lambda number: None)
            end_with_torchrun()
        return cls(store, known, mine, group, root)

    def wanted(self) -> bool:
        """Whether a checkpoint is to be made now. On all ranks, once a step: it is a broadcast of one number.

        Raises ``SystemExit`` on all ranks when the program must not go on: the node goes away and its last checkpoint is committed,
        or another attempt holds the run.
        """
        verdict = _GO_ON
        committer = self._committer
        if committer is not None:
            if committer.stopped:
                verdict = _FENCED if committer.fenced else _STOP
            elif committer.request() is not None:
                verdict = _SAVE
        verdict = _number_from_root(verdict, self._group, self.root)
        if verdict in (_STOP, _FENCED):
            raise SystemExit(_exit_code(verdict))
        return verdict == _SAVE

    @property
    def patience(self) -> float:
        """Seconds that a store which is away is waited for; only the rank that commits knows, elsewhere 0."""
        return 0.0 if self._committer is None else self._committer.patience

    def agreed(self, yes: bool) -> bool:
        """What one rank says, on all: where they must do the same, and their clocks differ. A broadcast of one number."""
        return bool(_number_from_root(int(yes), self._group, self.root))

    def save(self, state: dict[str, Any], step: int) -> None:
        """``dcp.save`` of the state into a checkpoint of that step, on all ranks. Raises as ``dcp.save`` with ``writer(step)`` does."""
        writer = self.writer(step)
        if self.root == 0:
            save(state, storage_writer=writer, process_group=self._group)
            return
        with warnings.catch_warnings():
            # The one that can be told which rank coordinates.
            warnings.simplefilter("ignore", FutureWarning)
            save_state_dict(state, writer, process_group=self._group, coordinator_rank=self.root)

    def writer(self, step: int) -> RunWriter:
        """For ``dcp.save(state, storage_writer=run.writer(step))`` and ``dcp.async_save``, on all ranks.

        It answers the request that ``wanted`` saw. One save at a time: wait for an ``async_save`` before the next call. ``dcp.save``
        lets rank 0 commit: where that is not ``root`` it fails, and ``save`` is to be used.
        """
        # One for each save: what an async_save in flight still needs is its own.
        previous, self._writer = self._writer, RunWriter(self._committer, step=step, endpoint_url=self._endpoint_url)
        if previous is not None:
            self._writer.follow(previous)
        if self._committer is not None:
            request = self._committer.take()
            self._answering = request.seq if request else None
            self._writer.answer(self._answering)
        return self._writer

    def failed(self, error: str) -> None:
        """The save that ``writer`` was made for has failed: whoever asked for it need not wait. On any rank."""
        if self._committer is not None and self._answering is not None:
            self._committer.failed(self._answering, error)
            self._answering = None

    def reader(self) -> RunReader:
        """For ``dcp.load(state, storage_reader=run.reader())``, on all ranks; only if ``restore`` is not None.

        ``load`` does it, and goes on with an older checkpoint when this one is damaged.
        """
        if self.restore is None:
            raise RestoreFailed("this run has no checkpoint yet: look at DistributedRun.restore first")
        return RunReader(self._store, self.restore.manifest)

    def progress(self, completed: int, total: int | None) -> None:
        """For ``spotburst describe``: how far the program is. On any rank."""
        if self._committer is not None and total is not None:
            try:
                self._committer.progress(completed, total)
            except SpotburstError as error:
                log.debug("progress not told: %s", error)

    def load(self, state: dict[str, Any], *, planner: Any = None, optional: Collection[str] = ()) -> bool:
        """``dcp.load`` of the newest checkpoint that verifies, on all ranks; False for a new run.

        ``optional`` keys of ``state`` stay as they are where the checkpoint does not have them (what a rank has of its own, say).
        Damaged ones are reported and passed over. Raises ``RestoreFailed`` when there is none left, and DCP's
        ``CheckpointException`` where the state does not fit.
        """
        started = time.monotonic()
        while self.restore is not None:
            reader = self.reader()
            # DCP hides the kind of an error in here, so it is asked first.
            problem = _first_damage(_from_all(_error_of(reader.read_metadata), self._group))
            if problem is None:
                there = reader.read_metadata().state_dict_metadata
                wanted = {key: value for key, value in state.items() if key in there or key not in optional}
                try:
                    load(wanted, storage_reader=reader, planner=planner, process_group=self._group)
                except CheckpointException as error:
                    problem = _first_damage([failure for failure, _ in error.failures.values()])
                    if problem is None:
                        raise
                else:
                    state.update(wanted)
                    self._done(time.monotonic() - started)
                    return True
            self._pass_over(problem)
        return False

    def _done(self, seconds: float) -> None:
        if self._committer is not None and self.restore is not None:
            self._committer.restore_done(self.restore.entry, seconds)

    def _pass_over(self, problem: SpotburstError) -> None:
        restore, committer = self.restore, self._committer
        if restore is None:
            return

        def older() -> Restore | None:
            log.warning("the checkpoint of step %s can't be restored: %s", restore.step, problem)
            return committer.restore_failed(restore.entry, str(problem)) if committer is not None else None

        self.restore = _from_root(older, self._group, self.root)

    def close(self) -> None:
        """At the end. Needs no other rank."""
        if self._committer is not None:
            self._committer.close()


def _exit_code(verdict: int) -> int:
    if verdict == _FENCED:
        return int(ExitCode.FENCED)
    # torchrun takes any code but 0 for a failure, reports it at length and may start all anew. The wrapper knows why the program ends.
    return 0 if os.environ.get(SOCKET_VARIABLE) and "TORCHELASTIC_RUN_ID" in os.environ else int(ExitCode.REQUEUED)


def _global(group: Any, rank: int) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


def _many(group: Any) -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def _committing_rank(given: Committer | None, group: Any) -> int:
    """The first rank whose wrapper commits. Raises ``UsageError``, on all ranks, where there is none."""
    denied = given is None and bool(os.environ.get(SOCKET_VARIABLE)) and os.environ.get(COMMITS_VARIABLE) == "0"
    able = [rank for rank, no in enumerate(_from_all(denied, group)) if not no]
    if not able:
        raise UsageError(
            "no rank of this group runs under the wrapper that commits, which is that of the step's first task (SLURM_PROCID 0): "
            "the group must hold a rank of it"
        )
    return able[0]


def _error_of(act: Callable[[], Any]) -> BaseException | None:
    try:
        act()
    except SpotburstError as error:
        return error
    return None


def _first_damage(errors: list[BaseException | None]) -> SpotburstError | None:
    """None if there is no error; a damage that an older checkpoint may not have; any other is raised."""
    for error in errors:
        if isinstance(error, (Damaged, ObjectMissing)) and not isinstance(error, NewerFormat):
            return error
    for error in errors:
        if isinstance(error, SpotburstError):
            raise error
    return None


def _from_root(act: Callable[[], T], group: Any, root: int) -> T:
    """What ``act`` returns on that rank of the group, or raises there, on every rank."""
    box: list[Any] = [None, None]
    if not _many(group) or dist.get_rank(group) == root:
        try:
            box[0] = act()
        except (SpotburstError, OSError) as error:
            box[1] = error
    if _many(group):
        dist.broadcast_object_list(box, src=_global(group, root), group=group)
    if box[1] is not None:
        raise box[1]
    result: T = box[0]
    return result


def _from_all(mine: T, group: Any) -> list[T]:
    if not _many(group):
        return [mine]
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    return every


def _number_from_root(number: int, group: Any, root: int) -> int:
    if not _many(group):
        return number
    cpu = "gloo" in str(dist.get_backend_config(group))
    box = torch.tensor([number], device="cpu" if cpu else torch.device("cuda", torch.cuda.current_device()))
    dist.broadcast(box, src=_global(group, root), group=group)
    return int(box.item())
