"""`ShardedCheckpointer`: the save boundary of a training loop of several ranks, FSDP and DDP alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.checkpoint.api import CheckpointException

from job_wrapper import program
from job_wrapper.checkpoint import config as configuration
from job_wrapper.checkpoint import data as placing
from job_wrapper.checkpoint import resume, rng
from job_wrapper.checkpoint.committer import Committer
from job_wrapper.checkpoint.dcp import DistributedRun
from job_wrapper.checkpoint.members import SCALARS, Generator, Member, member
from job_wrapper.checkpoint.sampler import ResumableSampler
from job_wrapper.checkpoint.state import encode
from job_wrapper.errors import (
    CheckpointFailed,
    ConfigChanged,
    ExitCode,
    Fenced,
    SpotburstError,
    UsageError,
    may_pass,
)

log = logging.getLogger("spotburst")

COMMON, RANK = "common", "rank-"
"""Keys of the state beside the models' and the optimizers' names: what rank 0 says for all, and what each rank has of its own."""

PATIENCE = 480.0
"""Seconds that the final state's save is tried for while the store is away; under the wrapper as many as ``--store-patience`` says, if more."""


class ShardedCheckpointer:
    """What `Checkpointer` is for one process, on every rank of a program of several: the same lines on each, after ``init_process_group``.

    Models (``fully_shard``, FSDP, DDP, tensor parallel, plain) and their optimizers are saved as torch.distributed.checkpoint does, so
    that a later attempt may have another number of ranks. All else that is named must be the same on all ranks: rank 0's is saved.
    Each rank's own are the random generators (Python's, NumPy's, torch's, and those given by name), and the position of a loader
    with a state_dict. A `ResumableSampler` has one position for all; with another number of ranks keep ``batch_size * world_size``.

    All ranks save at the same step, in the foreground: each step tells them by a broadcast of one number. The options, ``values``,
    ``changed``, ``completed``, ``restored`` and what is raised are as for `Checkpointer`.
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
        group: Any = None,
        committer: Committer | None = None,
        **state: Any,
    ) -> None:
        self.completed = 0
        self.restored = False
        self.values: dict[str, Any] = {}
        self.changed: dict[str, tuple[Any, Any]] = {}
        self._models: dict[str, torch.nn.Module] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._members: dict[str, Member] = {}
        self._generators: dict[str, Generator] = {}
        self._no_place = data is None and not any(map(placing.knows_a_place, state.values()))
        for name, value in state.items():
            self._take(name, value)
        place = placing.position_of(data)
        self._sampler = place if isinstance(place, ResumableSampler) else None
        self._data = None if place is None else member("data", place)
        self._config = None if config is None else configuration.flatten(config)
        self._allowed = configuration.allowed_keys(allow_config_change)
        self._total, self._group = total, group
        started = dist.is_available() and dist.is_initialized()
        self._rank, self._ranks = (dist.get_rank(group), dist.get_world_size(group)) if started else (0, 1)
        self._asked = False
        self._committed: int | None = None
        self._own_saved: dict[str, Any] = {}
        self._run = DistributedRun.open(
            uri, run, endpoint_url=endpoint_url, keep=keep, interval=interval, group=group, committer=committer
        )
        self._tracker = resume.tracker_id(None if self._run is None else f"{self._run.uri}/{self._run.name}")
        if self._run is None:
            return
        encode(self._common())  # what can't be saved is said now, not at the first reclaim
        if self._run.restore is not None:
            self._restore(self._run)

    @property
    def active(self) -> bool:
        """Whether checkpoints go anywhere."""
        return self._run is not None

    def step(self, batches: int = 1) -> None:
        """A training step is finished, on all ranks. Saves if a checkpoint is asked for. Raises as ``Checkpointer.step`` does."""
        self.completed += 1
        if self._sampler is not None:
            self._sampler.advance(batches)
        run = self._run
        if run is not None and (run.wanted() or self._asked):
            self._asked = False
            self._save(run)
            run.wanted()  # leaves here if the node goes away

    def log(self, **values: Any) -> None:
        """As ``Checkpointer.log``; of all ranks rank 0's values are kept, so it may be called on that alone."""
        if self._rank == 0:
            program.log(self.completed + 1, **values)

    def save(self) -> None:
        """Ask for a checkpoint at the next ``step()``. On all ranks."""
        self._asked = True

    def tracker_id(self) -> str:
        """As ``Checkpointer.tracker_id``; where there are checkpoints it is the same on all ranks. One rank should tell the tracker."""
        return self._tracker

    def close(self) -> None:
        """Save the final state unless it is saved. On all ranks."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            patience = time.monotonic() + max(PATIENCE, run.patience)
            if self._sampler is not None:
                self._sampler.leave()
            while self.completed and self._committed != self.completed:
                # One rank that gives up alone would leave the others in a save that never ends.
                self._save(run, last=run.agreed(time.monotonic() > patience))
                if self._committed != self.completed:
                    time.sleep(5.0)
        finally:
            run.close()

    def __enter__(self) -> ShardedCheckpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._run is not None:
            self._run.close()

    # What there is

    def _take(self, name: str, value: Any) -> None:
        if name == COMMON or name.startswith(RANK):
            raise UsageError(f"ShardedCheckpointer({name}=…): the name is taken; give it another")
        if isinstance(value, SCALARS):
            self.values[name] = value
        elif isinstance(value, torch.nn.Module):
            self._models[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizers[name] = value
        elif value is not None:
            one = member(name, value)
            if isinstance(one, Generator):
                self._generators[name] = one
            else:
                self._members[name] = one

    def _model_of(self, name: str) -> torch.nn.Module:
        mine = {id(p) for group in self._optimizers[name].param_groups for p in group["params"]}
        for model in self._models.values():
            if mine <= {id(p) for p in model.parameters()}:
                return model
        raise UsageError(
            f"ShardedCheckpointer({name}=…): none of the models given has all of this optimizer's parameters; give its model too, "
            "sharded (fully_shard) before the optimizer is made"
        )

    def _parts(self) -> list[str]:
        return sorted([*self._models, *self._optimizers, *self._members, *self._generators])

    def _shards(self) -> dict[str, Any]:
        """A fresh optimizer gets a state by being asked for it, so this is for optimizers that have stepped or are to be loaded."""
        tree: dict[str, Any] = {name: states.get_model_state_dict(model) for name, model in self._models.items()}
        for name, optimizer in self._optimizers.items():
            tree[name] = states.get_optimizer_state_dict(self._model_of(name), optimizer)
        return tree

    def _common(self) -> dict[str, Any]:
        return {
            "completed": self.completed,
            "config": self._config,
            "tracker": self._tracker,
            "values": self.values,
            "parts": self._parts(),
            "place": None if self._sampler is None or self._data is None else self._data.capture(),
            "state": {name: one.capture() for name, one in self._members.items()},
        }

    def _own(self) -> dict[str, Any]:
        place = self._data.capture() if self._sampler is None and self._data is not None else None
        generators = {name: one.capture() for name, one in self._generators.items()}
        return {"rng": rng.capture(), "generators": generators, "place": place, "ranks": self._ranks}

    # Saving

    def _save(self, run: DistributedRun, last: bool = False) -> None:
        """A store that is away is waited for by going on, unless this is the ``last`` try."""
        # In tuples, which DCP's planner takes whole: a resumed program need not have the same keys in them yet.
        tree = {**self._shards(), f"{RANK}{self._rank}": (self._own(),)}
        if self._rank == 0:
            tree[COMMON] = (self._common(),)
        try:
            run.save(tree, self.completed)
        except CheckpointException as error:
            run.failed(str(error))
            # The failures are the same on all ranks.
            if not last and all(may_pass(failure) for failure, _ in error.failures.values()):
                log.warning("step %d is in no checkpoint yet, the one before stands: %s", self.completed, error)
                return
            self._fail(error)
        self._committed = self.completed
        run.progress(self.completed, self._total)

    def _fail(self, error: CheckpointException) -> NoReturn:
        failures = [failure for failure, _ in error.failures.values()]
        if any(isinstance(failure, Fenced) for failure in failures):
            raise SystemExit(int(ExitCode.FENCED)) from error
        for failure in failures:
            if isinstance(failure, CheckpointFailed):
                raise failure from error
        told = "; ".join(str(f) if isinstance(f, SpotburstError) else f"{type(f).__name__}: {f}" for f in failures)
        raise CheckpointFailed(
            f"the checkpoint of step {self.completed} could not be made; the one before it stands. {told}"
        ) from error

    # Restoring

    def _restore(self, run: DistributedRun) -> None:
        mine = f"{RANK}{self._rank}"
        tree = {**self._shards(), COMMON: (None,), mine: (None,)}
        run.load(tree, optional=[mine])
        common, own = tree[COMMON][0], tree[mine][0]
        where = f"the checkpoint of step {common['completed']}"
        self.changed = configuration.check(common["config"] or {}, self._config or {}, self._allowed, where)
        if self._parts() != common["parts"]:
            raise ConfigChanged(
                f"this program's state is not made of the same parts as {where}: {', '.join(common['parts'])} there, "
                f"{', '.join(self._parts())} now"
            )
        for name, model in self._models.items():
            states.set_model_state_dict(model, tree[name])
        for name, optimizer in self._optimizers.items():
            states.set_optimizer_state_dict(self._model_of(name), optimizer, tree[name])
        for name, one in self._members.items():
            one.restore(common["state"][name])
        self.values.update(common["values"])
        self._tracker, self.completed = common["tracker"], common["completed"]
        self._committed, self.restored = self.completed, True
        self._restore_place(common["place"], own)
        self._own_saved = own or {}
        self.restore_rng()
        if self._sampler is not None:
            self._sampler.on_restart = self.restore_rng
        run.progress(self.completed, self._total)

    def restore_rng(self) -> None:
        """As ``Checkpointer.restore_rng``: this rank's generators."""
        for name, saved in self._own_saved.get("generators", {}).items():
            self._generators[name].restore(saved)
        if "rng" in self._own_saved:
            rng.restore(self._own_saved["rng"])

    def _restore_place(self, place: Any, own: dict[str, Any] | None) -> None:
        if own is None:
            log.warning("rank %d is new: its random generators begin as the program has set them", self._rank)
        if self._data is None:
            if self._no_place and self._rank == 0:
                log.warning(placing.WITHOUT_DATA, self.completed)
            return
        if self._sampler is None:
            if own is None or own["ranks"] != self._ranks:
                raise ConfigChanged(
                    f"each rank's loader has its own position in the data, and there are {self._ranks} ranks now, not as many as in the "
                    "checkpoint: use as many as before, or a ResumableSampler, which can be shared anew"
                )
            place = own["place"]
        if place is None:
            raise ConfigChanged(
                "data=: the checkpoint has no position in data of this kind; give what the run was begun with"
            )
        self._data.restore(place)
        if self._sampler is None:
            self._data.capture()  # torchdata's loader makes its iterator now, before the generators are set
