"""One attempt's dealings with the store: claim, restore, commit, end. Called in worker threads; every call may be slow.

Nothing here decides when; `machine` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from job_wrapper.errors import (
    Damaged,
    ObjectMissing,
    SpotburstError,
    UsageError,
)
from job_wrapper.notice.types import Notice
from job_wrapper.run.asked import put_answer
from job_wrapper.run.beginning import Beginning
from job_wrapper.run.counters import ATTRIBUTE as PROGRESS
from job_wrapper.run.events import Save
from job_wrapper.run.options import RESTARTABLE
from job_wrapper.run.rules import FINISHED
from job_wrapper.store.io_types import CommitRef, Entry, Part
from job_wrapper.store.log import RunLog
from job_wrapper.store.paths import data_prefix

if TYPE_CHECKING:
    from job_wrapper.transfer import Progress


class Attempt(Beginning):
    """Rank 0's attempt: holds the claim once ``begin`` has returned."""

    # While it runs

    def welcome(self) -> dict[str, Any]:
        """What a program is told first: also one that connects late, when this epoch has commits of its own."""
        commit = self.restored
        newest = self._claim.entry.summary.commits[-1:]
        if newest and newest[0].epoch == self.epoch:
            commit = newest[0]
        return self._welcome(commit)

    def _welcome(self, commit: CommitRef | None) -> dict[str, Any]:
        restore = None
        if commit is not None:
            restore = {
                "entry": commit.seq,
                "epoch": commit.epoch,
                "step": commit.step,
                "manifest": asdict(commit.manifest),
            }
        return {
            "type": "welcome",
            "run": self.run,
            "uri": self.options.uri,
            "endpoint_url": self.options.endpoint_url,
            "epoch": self.epoch,
            "data": data_prefix(self.run, self.epoch),
            "restore": restore,
            "interval": self.options.interval,
            "patience": self.options.patience,
            "progress": None if self._kept is None else self._kept.told(),
        }

    def note_going(self, seconds: float | None = None) -> None:
        """The program works: the next entry tells since when, and how many seconds its own restore took."""
        if self._going:
            return
        self._going = True
        self._resumed = {**self._resumed, "resumed_at": self.clock(), "restore_seconds": seconds}

    def commit(
        self, asked: Save, notice: Notice | None, pace: Mapping[str, object] | None = None
    ) -> tuple[Entry, float]:
        """Store the state directories, the manifest, the log entry. Returns the entry and the seconds that it took.

        ``pace``: the interval in force, as ``Pace.told`` gives it, for ``describe``.

        Raises ``Fenced``, ``CheckpointFailed`` and the like (nothing was committed), ``StoreError`` (may be tried again).
        """
        from job_wrapper.state_dirs import PART, NothingToSave, save
        from job_wrapper.store.read import read_part
        from job_wrapper.store.write import write_manifest

        began = self.steady()
        claim, parts = self._claim, dict(asked.parts)
        for name, reference in parts.items():
            if name == PART:
                raise UsageError(f"part {name}: this name is the wrapper's own")
            if not reference.key.startswith(claim.data_prefix + "/"):
                raise UsageError(f"part {name}: {reference.key} was not written by this attempt ({claim.data_prefix})")
        if self.roots:
            base: Part | None = None
            if self._base is not None:
                try:
                    base = read_part(self.store, self._base)
                except (Damaged, ObjectMissing) as error:
                    self.say(f"{error}: all files are written anew")
            parts[PART] = save(
                self.store,
                claim.data_prefix,
                self.roots,
                base=base,
                max_size=self.options.max_size,
                progress=self._shown(asked.reason),
                alone=not parts and not (asked.carry and self.parts),
            )
        counters = self.counters
        step = asked.step if asked.step is not None else counters.completed if counters is not None else None
        if asked.carry and self._claim.entry.summary.commits:
            parts |= self.parts
            step = self._claim.entry.summary.commits[-1].step
        if not parts and self.options.continuity != RESTARTABLE:
            raise UsageError("a checkpoint without any part")
        if not parts and counters in (None, self._kept):
            # The same numbers again would look like progress where there is none.
            raise NothingToSave("the program has told no progress since the last checkpoint", lost=False)
        attributes = {} if counters is None else {PROGRESS: counters.told()}
        manifest = write_manifest(
            self.store, self.run, self.epoch, claim.data_prefix, step=step, parts=parts, attributes=attributes
        )
        body: dict[str, Any] = {
            "reason": asked.reason,
            "urgent": asked.urgent,
            "seconds": round(self.steady() - began, 3),
        }
        body |= {"requested_at": asked.asked, "answered_at": asked.answered}
        if pace is not None:
            body["interval"] = dict(pace)
        body |= self.marks
        body |= attributes  # the manager buys a run's last part otherwise, and reads no manifests
        if notice is not None and asked.urgent:
            body["notice"] = asdict(notice)
        entry: Entry = self._telling(lambda more: claim.commit(manifest, step=step, body={**body, **more}))
        self._base = parts.pop(PART, None)
        self.parts, self._kept = parts, counters
        return entry, self.steady() - began

    def _shown(self, reason: str) -> Progress:
        """A program that still runs has the terminal, and nothing is drawn into what it shows there."""
        from job_wrapper.transfer import Shown, may_draw, silent

        terminal = may_draw()
        return silent if terminal and reason != FINISHED else Shown("saving", self.say, bar=terminal)

    def interrupted(self, reason: str, arrived: float, notice: Notice | None) -> None:
        """Log that this attempt ends and the run is to be brought back."""
        body: dict[str, Any] = {"arrived": arrived, **self.marks}
        if self._kept is not None:
            body[PROGRESS] = self._kept.told()
        if notice is not None:
            body["notice"] = asdict(notice)
        self._telling(lambda more: self._claim.interrupted(reason, {**body, **more}))

    def suspended(self, arrived: float) -> None:
        """Log that this attempt ends, and that the run waits for its user. ``arrived``: when that was asked (Unix seconds)."""
        body: dict[str, Any] = {"arrived": arrived}
        if self._kept is not None:
            body[PROGRESS] = self._kept.told()
        self._telling(lambda more: self._claim.suspended({**body, **more}))

    def answer(self, error: str) -> None:
        """Tell the user who asked for a checkpoint why there is none. Raises ``StoreError``."""
        put_answer(self.store, self.run, self.epoch, self.clock(), error)

    def end(self, code: int, reason: str, arrived: float | None = None, notice: Notice | None = None) -> None:
        """Log the end. Raises as ``commit``. Of a run that has succeeded only the final checkpoint stays.

        ``arrived`` and ``notice``: of the interruption that ends the run (``--on-interruption fail``).
        """
        body: dict[str, Any] = {} if arrived is None else {"arrived": arrived}
        if notice is not None:
            body["notice"] = asdict(notice)
        # Not while other ranks may still be reading an older one.
        alone = code == 0 and self.identity.tasks == 1
        self._telling(lambda more: self._claim.end(code, reason, {**body, **more}, keep=1 if alone else None))
        if alone and self._claim.entry.summary.commits:
            from job_wrapper.store.retention import collect

            try:
                collect(self._claim)
            except SpotburstError as error:
                self.say(f"older checkpoints could not be deleted: {error}")

    @property
    def newest(self) -> CommitRef | None:
        """The run's newest commit, as far as this attempt knows."""
        commits = self._claim.entry.summary.commits if self.claimed else ()
        return commits[-1] if commits else None

    def how_to_go_on(self) -> str:
        """For the user who ended it: the last commit, and what goes on from it."""
        newest = self.newest
        if newest is None:
            return "there is no commit yet: the next start begins anew"
        at = f"step {newest.step} (entry {newest.seq})" if newest.step is not None else f"entry {newest.seq}"
        name = "" if self.options.name == "main" else f" --name {self.options.name}"
        how = f"a new job with `spotburst run --run {self.run.split('/')[1]}{name} …`"
        if self.options.run or not self.identity.in_slurm:
            how = "the same command"
        return f"the last commit is {at}, {max(0.0, self.clock() - newest.time):.0f} s old: {how} goes on from it"

    def check(self) -> None:
        """Raises ``Fenced`` when a newer attempt holds the run."""
        self._claim.check()

    def collect(self) -> None:
        """Delete what no kept commit needs."""
        from job_wrapper.store.retention import collect

        collect(self._claim)

    def newer_epoch(self) -> int:
        """The epoch that fenced this one, as far as the store tells."""
        try:
            tail = RunLog(self.store, self.run).tail()
        except SpotburstError:
            tail = None
        return max(tail.epoch if tail is not None else 0, self.epoch + 1)

    def _telling(self, write: Callable[[dict[str, Any]], Entry]) -> Entry:
        """``write(…)`` with what is told by one entry only: of the restore by the first, of the training's curves by the next that gets into the log."""
        resumed = self._resumed if self._going else {}
        curves = self.curves.told()
        entry = write({**resumed, **curves})
        self.curves.written(curves)
        if resumed is self._resumed:
            self._resumed = {}
        return entry
