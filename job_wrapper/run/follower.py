"""The attempt of a rank other than 0: finds rank 0's claim, serves its program with the same epoch, writes nothing."""

from __future__ import annotations

import time
from typing import Any

from job_wrapper.errors import ExitCode, Fenced, RestoreFailed, SpotburstError, StoreError
from job_wrapper.run.attempt import Attempt
from job_wrapper.store.io_types import CommitRef, Entry, Kind, Summary
from job_wrapper.store.log import RunFinished, RunLog
from job_wrapper.store.open import open_store

CLAIM_WAIT = 600.0
"""Seconds that the other ranks wait for rank 0's claim, which comes after its checks but before its restore."""
POLL = 0.3


class RankZeroEnded(SpotburstError):
    """Rank 0 gave the run up; its exit code is passed on."""

    reason = "RankZeroEnded"


def newest_good(summary: Summary) -> CommitRef | None:
    """The newest commit that is not known to be bad. Pure."""
    good = [c for c in summary.commits if not summary.failed_restores.get(c.seq)]
    return good[-1] if good else None


class Follower(Attempt):
    """See ``Attempt``. State directories are rank 0's alone."""

    commits = False

    def begin(self) -> None:
        """Wait for the claim of this job, restart and step. Raises ``SpotburstError``."""
        self._store = self._patiently(lambda: open_store(self.options.uri, endpoint_url=self.options.endpoint_url))
        log = RunLog(self.store, self.run, clock=self.clock)
        until = self.clock() + CLAIM_WAIT
        while self.clock() < until:
            last = self._patiently(log.tail)
            if last is not None and self._ours(last):
                if last.kind is Kind.END and last.summary.ended:
                    error = RankZeroEnded(f"rank 0 has ended this run with {last.summary.ended}")
                    codes = {int(code): code for code in ExitCode}
                    error.exit_code = codes.get(last.summary.ended, ExitCode.RUN_HELD)
                    raise error
                self.epoch = last.epoch
                self.restored = newest_good(last.summary)
                return
            if last is not None and last.summary.ended == 0:
                raise RunFinished(last, f"{self.options.uri}/{self.run}")
            time.sleep(POLL)
        raise StoreError(f"{self.run}: rank 0 has not claimed the run within {CLAIM_WAIT:.0f} s")

    def _ours(self, entry: Entry) -> bool:
        who, writer = self.identity, entry.writer
        return (writer.job_id, writer.restart_count, writer.step_id) == (
            who.name_id,
            who.restart_count,
            who.step_id,
        )

    @property
    def claimed(self) -> bool:
        """Never: only rank 0 writes."""
        return False

    def welcome(self) -> dict[str, Any]:
        """As rank 0's, from what the log last told."""
        return self._welcome(self.restored)

    def check(self) -> None:
        """Raises ``Fenced`` when a newer attempt holds the run."""
        last = RunLog(self.store, self.run).tail()
        if last is None:
            return
        if last.epoch > self.epoch:
            raise Fenced(f"{self.run}: epoch {last.epoch} holds the run")
        self.restored = newest_good(last.summary)

    def restore_older(self, seq: int, error: str) -> None:
        """Rank 0 decides what is restored; the ranks' programs agree among themselves."""
        raise RestoreFailed(f"rank {self.identity.rank}: the checkpoint of entry {seq} can't be restored: {error}")
