"""What must hold of every log, whatever happened to its writers: a reference model to replay one against."""

from __future__ import annotations

from dataclasses import dataclass, field

from job_wrapper.store.io_types import CommitRef, Entry, Kind, Summary


@dataclass
class Model:
    """The run's state as DESIGN §3 tells it, computed from the kinds of entries alone."""

    keep: int
    epoch: int = 0
    job: str = ""
    recoveries: int = 0
    barren: int = 0
    progressed: bool = False
    suspended: bool = False
    commits: list[CommitRef] = field(default_factory=list)
    failed: dict[int, int] = field(default_factory=dict)
    ended: int | None = None
    closed: bool = False
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Restart count and step of every job's newest claim."""

    def step(self, entry: Entry) -> None:
        assert self.ended is None or entry.kind is Kind.CLAIM, "something follows an end that is not a claim"
        if entry.kind is Kind.CLAIM:
            assert self.ended != 0, "a run that had ended successfully was claimed"
            assert entry.epoch == self.epoch + 1, (
                f"the claim of epoch {self.epoch} is followed by one of epoch {entry.epoch}"
            )
            self._check_claimant(entry)
            same = entry.writer.job_id == self.job
            lost = 0 if self.suspended else 1  # its user stopped it: there was nothing to recover from
            self.recoveries = self.recoveries + lost if same else 0
            self.barren = self.barren + lost if same and not self.progressed else 0
            self.suspended = False
            self.epoch, self.job, self.progressed, self.ended = entry.epoch, entry.writer.job_id, False, None
            self.closed = False
            return
        # The whole point: nothing of an older epoch follows a newer claim.
        assert entry.epoch == self.epoch, (
            f"entry {entry.seq} of epoch {entry.epoch} follows the claim of epoch {self.epoch}"
        )
        self.closed = entry.kind in (Kind.INTERRUPTED, Kind.SUSPENDED, Kind.END)
        self.suspended = entry.kind is Kind.SUSPENDED
        if entry.kind is Kind.COMMIT:
            self.progressed = True
            self.commits = [c for c in self.commits if not self.failed.get(c.seq)]
            self.commits.append(entry.summary.commits[-1])
            assert self.commits[-1].seq == entry.seq
            self.commits = self.commits[-self.keep :]
            self.failed = {s: n for s, n in self.failed.items() if s in {c.seq for c in self.commits}}
        elif entry.kind is Kind.RESTORE_FAILED:
            seq = entry.body["entry"]
            self.failed[seq] = self.failed.get(seq, 0) + 1
        elif entry.kind is Kind.END:
            self.ended = entry.body["exit_code"]
            if self.ended == 0 and len(entry.summary.commits) < len(
                self.commits
            ):  # of a success the newest good one may do
                self.commits = [c for c in self.commits if not self.failed.get(c.seq)] or self.commits
                self.commits = self.commits[-max(1, len(entry.summary.commits)) :]
                self.failed = {s: n for s, n in self.failed.items() if s in {c.seq for c in self.commits}}

    def _check_claimant(self, entry: Entry) -> None:
        by = entry.writer
        if by.job_id in self.newest:
            restart, step = self.newest[by.job_id]
            later_step = by.restart_count == restart and by.step_id > step and self.closed and self.job == by.job_id
            assert by.restart_count > restart or later_step, "an attempt claimed that is not newer than one before it"
        self.newest[by.job_id] = (by.restart_count, by.step_id)

    def summary(self) -> Summary:
        return Summary(self.epoch, self.recoveries, self.barren, tuple(self.commits), self.failed, self.ended, None)


def check_log(entries: list[Entry], acknowledged: list[Entry], keep: int = 3) -> None:
    """``entries``: the whole log, its commits each of another step. ``acknowledged``: all that writers were told they had written."""
    model = Model(keep)
    holders: dict[int, str] = {}
    for seq, entry in enumerate(entries):
        assert entry.seq == seq
        model.step(entry)
        assert entry.summary == model.summary(), f"the summary of entry {seq} is not what the log up to it tells"
        assert holders.setdefault(entry.epoch, entry.writer.nonce) == entry.writer.nonce, "two holders of one epoch"
    steps = [e.summary.commits[-1].step for e in entries if e.kind is Kind.COMMIT]
    assert len(steps) == len(set(steps)), "one commit stands in the log twice"
    for entry in acknowledged:
        assert entries[entry.seq] == entry, f"acknowledged entry {entry.seq} was lost"
