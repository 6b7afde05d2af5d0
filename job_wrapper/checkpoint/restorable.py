"""What a program's state is made of: one tree to save, and set again from one that was saved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from job_wrapper.checkpoint import config as configuration
from job_wrapper.checkpoint import data as placing
from job_wrapper.checkpoint import resume, rng
from job_wrapper.checkpoint.committer import Committer
from job_wrapper.checkpoint.loading import Loaded
from job_wrapper.checkpoint.members import SCALARS, Generator, Member, member
from job_wrapper.checkpoint.sampler import ResumableSampler

log = logging.getLogger("spotburst")

FORMAT = 1
"""Version of the state tree."""


class Restorable:
    """What `Checkpointer` is built on, which says when to save and when to restore."""

    def __init__(self, data: Any, config: Any, allow_config_change: Collection[str], state: Mapping[str, Any]) -> None:
        """As ``Checkpointer`` is given them."""
        self.completed = 0
        """Steps done, over all attempts."""
        self.restored = False
        """Whether this attempt began from a checkpoint."""
        self.values: dict[str, Any] = {}
        self.changed: dict[str, tuple[Any, Any]] = {}
        """Keys of the configuration that differ from the checkpoint's, with the old and the new value."""
        self._members: dict[str, Member] = {}
        for name, value in state.items():
            if isinstance(value, SCALARS):
                self.values[name] = value
            elif value is not None:
                self._members[name] = member(name, value)
        self._no_place = data is None and not any(map(placing.knows_a_place, state.values()))
        data = placing.position_of(data)
        self._sampler: ResumableSampler | None = data if isinstance(data, ResumableSampler) else None
        if data is not None:
            self._members["data"] = member("data", data)
        self._advance = self._sampler.advance if self._sampler else None
        self._config = None if config is None else configuration.flatten(config)
        self._allowed = configuration.allowed_keys(allow_config_change)
        self._tracker: str | None = None
        self._rng: dict[str, Any] | None = None
        self._generators: list[tuple[Generator, Any]] = []
        self._committer: Committer | None = None

    def tracker_id(self) -> str:
        """An id for an experiment tracker's run (``wandb.init(id=…, resume="allow")``), the same in all attempts of this run."""
        if self._tracker is None:
            committer = self._committer
            self._tracker = resume.tracker_id(None if committer is None else f"{committer.uri}/{committer.run}")
        return self._tracker

    def restore_rng(self) -> None:
        """Set the random generators again as the checkpoint has them.

        For a loader that draws from them when its iterator is made: call this right after. With a `ResumableSampler` and with
        torchdata's StatefulDataLoader it is done.
        """
        for generator, saved in self._generators:
            generator.restore(saved)
        if self._rng is not None:
            rng.restore(self._rng)

    # The tree

    def _tree(self, but: Collection[str] = ()) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "completed": self.completed,
            "config": self._config,
            "tracker": self.tracker_id(),
            "state": {name: one.capture() for name, one in self._members.items() if name not in but},
            "values": self.values,
            "rng": rng.capture(),
        }

    def _captured(self, wanted: Callable[[Member], bool]) -> dict[str, Any]:
        return {name: one.capture() for name, one in self._members.items() if wanted(one)}

    def _set(self, committer: Committer, loaded: Loaded, where: str) -> None:
        tree = loaded.tree
        self.changed = configuration.check(tree["config"] or {}, self._config or {}, self._allowed, where)
        saved = tree["state"]
        resume.check_parts(saved, self._members, self._allowed, where)
        resume.fill(committer, loaded, where)
        for name, one in self._members.items():
            if name in saved:
                one.restore(saved[name])
                if isinstance(one, Generator):
                    self._generators.append((one, saved[name]))
        if self._sampler is None and "data" in self._members:
            # torchdata's loader makes its iterator now, and draws what it draws, before the generators are set; the loop gets that one.
            self._members["data"].capture()
        elif self._no_place and tree["completed"]:
            log.warning(placing.WITHOUT_DATA, tree["completed"])
        self.values.update(tree["values"])
        self._tracker = tree["tracker"]
        self.completed = tree["completed"]
        # Last, and once more when the loader has drawn what it draws at its start.
        self._rng = tree["rng"]
        self.restore_rng()
        if self._sampler is not None and "data" in saved:
            self._sampler.on_restart = self.restore_rng
