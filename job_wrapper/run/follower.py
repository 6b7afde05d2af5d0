"""The attempt of a rank other than 0: finds rank 0's claim, serves its program with the same epoch, writes nothing."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

from job_wrapper.errors import Damaged, ExitCode, Fenced, ObjectMissing, RestoreFailed, SpotburstError, StoreError
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.beginning import refused_key, restored_key
from job_wrapper.run.counters import counters_of
from job_wrapper.run.pulse import Heard
from job_wrapper.store.codec import unseal
from job_wrapper.store.io_types import CommitRef, Entry, Kind
from job_wrapper.store.log import RunFinished, RunLog
from job_wrapper.store.open import open_store

CLAIM_WAIT = 120.0
"""Seconds that the other ranks wait for rank 0's claim, beyond those that it may wait for its store."""
POLL = 0.3
REFUSAL_POLL = 2.0
"""Seconds between looks whether rank 0 has begun nothing, until it has claimed the run."""


class RankZeroEnded(SpotburstError):
    """Rank 0 gave the run up; its exit code is passed on."""

    reason = "RankZeroEnded"


def _ended(how: str, code: object) -> RankZeroEnded:
    error = RankZeroEnded(f"rank 0 {how} with {code}: its own message tells why")
    codes = {int(each): each for each in ExitCode}
    error.exit_code = codes.get(code, ExitCode.RUN_HELD) if isinstance(code, int) else ExitCode.RUN_HELD
    return error


class Follower(Attempt):
    """See ``Attempt``. State directories are saved and restored by rank 0 alone."""

    commits = False
    _newest: CommitRef | None = None
    _parts: bool | None = None
    _ask_parts = 0.0

    def begin(self) -> None:
        """Wait for the claim of this job, restart and step, and for rank 0's restore. Raises ``SpotburstError``.

        The log may name an attempt of the same numbers that Slurm has forgotten (``relaunch``), or one that it has put in this one's place:
        only rank 0 of this launch is heard.
        """
        self._check_roots()
        self._store = self._patiently(
            lambda: open_store(self.options.uri, endpoint_url=self.options.endpoint_url, prove=False, mark=self._mark)
        )
        log = RunLog(self.store, self.run, clock=self.clock)
        wait = CLAIM_WAIT + max(480.0, self.options.patience)
        until = self.steady() + wait
        ask = self.steady() + REFUSAL_POLL
        heard = Heard(self.store, self.run)
        while True:
            last = self._patiently(lambda: log.newest()[0])  # rank 0 passes over damaged entries too
            told, restores = None, 0
            if last is not None and self._ours(last):
                key = restored_key(self.run, last.epoch)
                told = self._patiently(lambda key=key: self._read(key, "restored"))  # type: ignore[misc]
                if told is not None and self._of_this_launch(told):
                    if last.kind is Kind.END and last.summary.ended:
                        raise _ended("has ended this run", last.summary.ended)
                    self.epoch = last.epoch
                    self.restored = self._restored_from(last, told.get("entry"))
                    self.counters = self._kept = counters_of(told.get("progress"))
                    return
                restores = last.epoch if told is None and last.kind is not Kind.END else 0
            if last is not None and last.summary.ended == 0:
                raise RunFinished(last, f"{self.options.uri}/{self.run}")
            if self.steady() >= ask:
                ask = self.steady() + REFUSAL_POLL
                if restores and self._patiently(partial(heard.anew, restores)):
                    until = max(until, self.steady() + wait)  # a restore takes as long as it takes
                refused = self._patiently(lambda: self._read(refused_key(self.run, self.identity), "refused"))
                if refused is not None and self._of_this_launch(refused):
                    raise _ended("has begun nothing, and ended", refused.get("code"))
            if self.steady() >= until:
                if last is not None and told is not None:  # not for this launch to bring the job back
                    raise Fenced(f"{self.run}: another launch of this attempt holds the run (epoch {last.epoch})")
                what = "told of its restore" if restores else "claimed the run"
                raise StoreError(f"{self.run}: rank 0 has not {what} within {wait:.0f} s")
            time.sleep(POLL)

    def _read(self, key: str, kind: str) -> dict[str, Any] | None:
        """What rank 0 tells there, if it does."""
        try:
            return unseal(self.store.get(key), kind, f"{self.store.uri}/{key}")
        except ObjectMissing:
            return None

    def _restored_from(self, last: Entry, seq: Any) -> CommitRef | None:
        """The commit that rank 0 began from. Beside it this rank must never begin from another, or from nothing."""
        if seq is None:
            return None
        found = [commit for commit in last.summary.commits if commit.seq == seq]
        if not found and isinstance(seq, int) and 0 <= seq < last.seq:
            # Rank 0 has made as many commits as are kept since: this rank is late. The entry itself tells of it.
            with contextlib.suppress(ObjectMissing, Damaged):
                entry = self._patiently(lambda: RunLog(self.store, self.run).read(seq))
                found = [commit for commit in entry.summary.commits if commit.seq == seq]
        if found:
            return found[0]
        raise Damaged(
            f"{self.store.uri}/{self.run}: rank 0 began from the checkpoint of entry {seq}, which the run's log does not name"
        )

    def _ours(self, entry: Entry) -> bool:
        who, writer = self.identity, entry.writer
        return (writer.job_id, writer.restart_count, writer.step_id) == (
            who.name_id,
            who.restart_count,
            who.step_id,
        )

    def _of_this_launch(self, told: dict[str, Any]) -> bool:
        """Whether rank 0 of this very launch has told that, and not that of one before or after it (``relaunch``)."""
        mine = self.identity.launch
        theirs = {name: told.get(name, mine[name]) for name in mine}
        return theirs == mine or (theirs["nodes"] == mine["nodes"] and self._in_parts())

    def _in_parts(self) -> bool:
        """Whether the step is a heterogeneous one: two launches of it on the same nodes can't be told apart."""
        if self._parts is None and self.job is not None and self.steady() >= self._ask_parts:
            self._ask_parts = self.steady() + REFUSAL_POLL
            self._parts = self.job.in_parts(self.identity.step_id)
        return self._parts is True

    @property
    def claimed(self) -> bool:
        """Never: only rank 0 writes."""
        return False

    def welcome(self) -> dict[str, Any]:
        """As rank 0's, from what the log last told."""
        newest = self._newest
        return self._welcome(newest if newest is not None and newest.epoch == self.epoch else self.restored)

    def check(self) -> None:
        """Raises ``Fenced`` when a newer attempt holds the run."""
        last = RunLog(self.store, self.run).tail()
        if last is None:
            return
        if last.epoch > self.epoch:
            raise Fenced(f"{self.run}: epoch {last.epoch} holds the run")
        self._newest = last.summary.commits[-1] if last.summary.commits else None

    def restore_older(self, seq: int, error: str) -> None:
        """Rank 0 decides what is restored; the ranks' programs agree among themselves."""
        raise RestoreFailed(f"rank {self.identity.rank}: the checkpoint of entry {seq} can't be restored: {error}")
