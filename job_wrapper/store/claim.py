"""The live right to commit to a run (DESIGN §3): held until a higher epoch is found in the log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from job_wrapper.errors import Damaged, Fenced, ObjectMissing, SpotburstError, StoreRefused
from job_wrapper.store import paths
from job_wrapper.store.codec import decode_entry, encode_entry
from job_wrapper.store.decided_put import Patience, decided_put
from job_wrapper.store.io_types import CommitRef, Entry, Kind, ObjectRef, ObjectStore, Summary, Writer


class Claim:
    """One epoch of a run. All methods may be called from several threads; one writes at a time.

    The rule that makes a stale commit impossible: an entry is only ever put directly after an entry of this very epoch, with all before
    it read. So a newer claim, which takes the next number, is always met.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        entry: Entry,
        *,
        keep: int = 3,
        clock: Callable[[], float] = time.time,
        patience: Patience | None = None,
        passed_over: Sequence[Damaged] = (),
    ) -> None:
        self.store = store
        self.run = run
        self.epoch: int = entry.epoch
        self.writer: Writer = entry.writer
        self.entry = entry
        """The newest entry known; its summary is the run's state."""
        self.data_prefix = paths.data_prefix(run, entry.epoch)
        self.keep = max(1, keep)
        self.dropped: list[CommitRef] = []
        """Commits of this epoch that later summaries do not name any more: what ``collect`` may remove of this epoch."""
        self.passed_over = tuple(passed_over)
        """Damaged entries of the log that this claim was made without."""
        self.swept = 0
        """The newest epoch whose unfinished writes ``collect`` has removed."""
        self._clock = clock
        self._patience = patience or Patience()
        self._lock = threading.RLock()
        self._fenced: Fenced | None = None
        self._written = deque([(entry.seq, encode_entry(entry, run))], maxlen=4096)
        """Number and bytes of this claim's own entries, for ``check``."""

    def commit(self, manifest: ObjectRef, *, step: int | None, body: dict[str, Any] | None = None) -> Entry:
        """Make a checkpoint whose data and manifest are stored the newest of the run.

        Raises ``Fenced`` for ever once a newer epoch is found. After ``StoreError`` the commit is undecided, and may be tried again.
        """
        if not manifest.key.startswith(self.data_prefix + "/"):
            raise SpotburstError(
                f"{manifest.key}: not written by epoch {self.epoch} of {self.run}, so it can't be committed by it"
            )

        def summary(seq: int, when: float) -> Summary:
            ref = CommitRef(seq, self.epoch, step, when, manifest)
            return with_commit(self.entry.summary, ref, self.keep)

        with self._lock:
            return self._append(Kind.COMMIT, summary, {"step": step, **(body or {})})

    def restore_failed(self, seq: int, error: str) -> Entry:
        """Record that the commit in entry ``seq`` could not be restored."""

        def summary(_seq: int, _when: float) -> Summary:
            failed = dict(self.entry.summary.failed_restores)
            failed[seq] = failed.get(seq, 0) + 1
            return replace(self.entry.summary, failed_restores=failed)

        with self._lock:
            return self._append(Kind.RESTORE_FAILED, summary, {"entry": seq, "error": error[:2000]})

    def interrupted(self, reason: str, body: dict[str, Any] | None = None) -> Entry:
        """Record that this attempt ends and the run is to be brought back."""
        with self._lock:
            return self._append(Kind.INTERRUPTED, self._same, {"reason": reason, **(body or {})})

    def suspended(self, body: dict[str, Any] | None = None) -> Entry:
        """Record that this attempt ends and the run waits."""
        with self._lock:
            return self._append(Kind.SUSPENDED, self._same, dict(body or {}))

    def end(self, exit_code: int, reason: str, body: dict[str, Any] | None = None, *, keep: int | None = None) -> Entry:
        """Record that the program has ended by itself, or that the run is given up. Nothing is written after it.

        ``keep``: so many of the newest commits are still named, and the others may be collected; None for all. Only for a run that has
        succeeded: one that failed may be started again, and then needs an older commit where the newest turns out to be damaged.
        """

        def summary(_seq: int, _when: float) -> Summary:
            last = self.entry.summary
            return replace(last if keep is None else narrowed(last, keep), ended=exit_code)

        with self._lock:
            return self._append(Kind.END, summary, {"exit_code": exit_code, "reason": reason, **(body or {})})

    def check(self) -> None:
        """Raise ``Fenced`` if a newer epoch has claimed the run. Costs one read that finds nothing, and one of the entry before the newest.

        Entries of this claim that the store has lost since (a server that came back with older data) are put back: a log with a hole
        lets no later attempt in.
        """
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            while True:
                seq = self.entry.seq + 1
                try:
                    data = self.store.get(paths.log_key(self.run, seq))
                except ObjectMissing:
                    break
                self._take_in(data, seq)
            self._put_back()

    def _put_back(self) -> None:
        lost = []
        for seq, mine in reversed(self._written):
            if seq == self.entry.seq:
                continue  # nothing that matters stands on it yet
            try:
                found = self.store.get(paths.log_key(self.run, seq))
            except ObjectMissing:
                lost.append((seq, mine))
                continue
            if found != mine:
                self._look_at(found, seq)
            break
        # Upwards: a claim that was made on the older data then stands in the way of the first, and fences this one.
        for seq, mine in reversed(lost):
            other = decided_put(self.store, paths.log_key(self.run, seq), mine, self._patience)
            if other is not None:
                self._take_in(other, seq)

    def _look_at(self, data: bytes, seq: int) -> None:
        """What stands in the place of one of our own entries: a newer claim on older data fences this one, damage says nothing."""
        try:
            newer = decode_entry(data, paths.log_key(self.run, seq), seq, self.run).epoch > self.epoch
        except Damaged:
            return
        if newer:
            self._take_in(data, seq)

    def _same(self, _seq: int, _when: float) -> Summary:
        return self.entry.summary

    def _append(self, kind: Kind, summary: Callable[[int, float], Summary], body: dict[str, Any]) -> Entry:
        if self._fenced is not None:
            raise self._fenced
        while True:
            if self.entry.kind is Kind.END:
                if kind is Kind.END:
                    return self.entry
                raise SpotburstError(f"{self.store.uri}/{self.run}: this attempt has ended; no {kind.value} can follow")
            seq, when = self.entry.seq + 1, self._clock()
            entry = Entry(seq, kind, self.epoch, self.writer, when, summary(seq, when), body)
            data = encode_entry(entry, self.run)
            found = decided_put(self.store, paths.log_key(self.run, seq), data, self._patience)
            if found is None:
                self._written.append((seq, data))
                self._adopt(entry)
                return entry
            self._take_in(found, seq)

    def _take_in(self, data: bytes, seq: int) -> None:
        """An entry that stands where our next one should: a newer claim, or one of our own whose put was given up and landed late."""
        where = f"{self.store.uri}/{paths.log_key(self.run, seq)}"
        try:
            entry = decode_entry(data, where, seq, self.run)
        except Damaged as error:
            # Not ours, since ours is known byte for byte; so it can't be told who holds the run, and going on is not safe.
            self._fenced = Fenced(
                f"{error}. It stands where this attempt's next entry should: another may hold the run"
            )
            raise self._fenced from error
        if entry.epoch > self.epoch:
            by = entry.writer
            self._fenced = Fenced(
                f"{self.store.uri}/{self.run}: epoch {entry.epoch} (job {by.job_id}, restart {by.restart_count}, on {by.host}) has claimed "
                f"the run; epoch {self.epoch} may write nothing more"
            )
            raise self._fenced
        if entry.epoch < self.epoch or entry.writer.nonce != self.writer.nonce:
            self._fenced = Fenced(
                f"{where}: epoch {entry.epoch} was written by two holders: this store does not honour put-if-absent"
            )
            raise StoreRefused(str(self._fenced))
        self._adopt(entry)

    def _adopt(self, entry: Entry) -> None:
        kept = {c.seq for c in entry.summary.commits}
        self.dropped += [c for c in self.entry.summary.commits if c.seq not in kept and c.epoch == self.epoch]
        self.entry = entry


def with_commit(summary: Summary, ref: CommitRef, keep: int) -> Summary:
    """``summary`` with a new commit: the newest ``keep`` that are not known to be bad. Pure.

    A commit that failed to restore does not count: dropping a good one for its sake would leave fewer that verify than asked for.
    """
    good = [c for c in summary.commits if not summary.failed_restores.get(c.seq)]
    return _naming(summary, (*good, ref)[-max(1, keep) :])


def narrowed(summary: Summary, keep: int) -> Summary:
    """``summary`` with the newest ``keep`` commits that are not known to be bad; all are bad, the newest of these. Pure."""
    good = tuple(c for c in summary.commits if not summary.failed_restores.get(c.seq))
    return _naming(summary, (good or summary.commits)[-max(1, keep) :])


def _naming(summary: Summary, commits: tuple[CommitRef, ...]) -> Summary:
    names = {c.seq for c in commits}
    return replace(
        summary, commits=commits, failed_restores={s: n for s, n in summary.failed_restores.items() if s in names}
    )
