"""The running, wrapped program that a JOB means, for commands that ask something of it; and its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import typer

from job_wrapper.durations import seconds_of
from job_wrapper.errors import (
    CheckpointFailed,
    Damaged,
    ObjectMissing,
    SpotburstError,
    StoreError,
    UsageError,
    may_pass,
)
from job_wrapper.run import asked
from job_wrapper.run.identity import BATCH_STEP
from job_wrapper.run.options import EPHEMERAL
from job_wrapper.store import RunLog
from job_wrapper.store.io_types import CommitRef, Entry, Kind
from slurm_plugin.cli.acting import NotPossible, find_job, over, words
from slurm_plugin.cli.source import Place, find_run
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.records import Job

LOOK_EVERY = 0.5
"""Seconds between looks at the run's log."""
ASK_SLURM_EVERY = 5.0
"""Seconds between looks at the job."""

WaitOption = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the answer, such as 90s or 10m.")
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Ask, and do not wait for the answer.")]
KeptNameOption = Annotated[
    str | None, typer.Option("--name", help="Whose answer to wait for, where the job has several wrapped programs.")
]


class NoAnswer(SpotburstError):
    """The wrapper has not answered in time: what was asked still stands."""

    reason = "NoAnswer"


def seconds(text: str) -> float:
    """``--timeout`` in seconds. Raises ``UsageError``."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None


def at(commit: CommitRef | None) -> str:
    """How messages name a checkpoint: ``step 120 (entry 9)``."""
    if commit is None:
        return "no checkpoint"
    return f"step {commit.step} (entry {commit.seq})" if commit.step is not None else f"entry {commit.seq}"


@dataclass
class Target:
    """One attempt that can be asked. ``tail`` is the newest log entry, and ``answers`` are those given, before anything was asked."""

    job: Job
    where: Place
    run: str
    tail: Entry
    answers: frozenset[str] = frozenset()
    steady: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)

    @property
    def log(self) -> RunLog:
        """The run's."""
        return RunLog(self.where.store, self.run)

    def wait(self, kind: Kind, client: SlurmClient, patience: float) -> Entry:
        """The answer: the next urgent commit, or the next entry of another ``kind``.

        Raises ``CheckpointFailed`` with the wrapper's reason where none was made, ``NotPossible`` where the attempt has ended instead,
        ``NoAnswer`` after ``patience`` seconds. A store or a Slurm that is away meanwhile is asked again.
        """
        until, ask_slurm, seq, away = self.steady() + patience, self.steady() + ASK_SLURM_EVERY, self.tail.seq, ""
        while True:
            try:
                away = ""
                try:
                    entry = self.log.read(seq + 1)
                    seq += 1
                    if self._is_answer(entry, kind):
                        return entry
                    continue
                except ObjectMissing:
                    self._refused()
            except StoreError as error:
                if not may_pass(error):
                    raise
                away = f"; the store can't be reached now: {error}"
            if self.steady() >= ask_slurm:
                ask_slurm = self.steady() + ASK_SLURM_EVERY
                self._still_runs(client)
            if self.steady() >= until:
                raise NoAnswer(
                    f"job {self.job.name_id} has not answered within {patience:g} s; it still will, if it can: a program saves between "
                    f"two of its steps. `spotburst checkpoints {self.job.name_id}` shows what was committed{away}"
                )
            self.sleep(LOOK_EVERY)

    def _is_answer(self, entry: Entry, kind: Kind) -> bool:
        if entry.epoch != self.tail.epoch:
            raise NotPossible(
                f"job {self.job.name_id}: a newer attempt (epoch {entry.epoch}) has begun meanwhile: ask again"
            )
        if entry.kind is kind and (kind is not Kind.COMMIT or entry.body.get("urgent")):
            return True
        newest = at(entry.summary.commits[-1] if entry.summary.commits else None)
        if entry.kind is Kind.END:
            raise NotPossible(
                f"job {self.job.name_id}: its program has ended meanwhile (exit code {entry.summary.ended}); newest checkpoint: {newest}"
            )
        if entry.kind in (Kind.INTERRUPTED, Kind.SUSPENDED):
            why = entry.body.get("reason") or "it was suspended"
            raise NotPossible(
                f"job {self.job.name_id}: its attempt has ended meanwhile ({why}); newest checkpoint: {newest}"
            )
        return False

    def _refused(self) -> None:
        told = asked.read_answers(self.where.store, self.run, self.tail.epoch)
        for key, error in told.items():
            if key not in self.answers:
                commits = self.tail.summary.commits
                stands = f"the one before stands: {at(commits[-1])}" if commits else "there is none yet"
                raise CheckpointFailed(
                    f"job {self.job.name_id}: no checkpoint was made ({stands}), and the job goes on: {error}"
                )

    def _still_runs(self, client: SlurmClient) -> None:
        try:
            shown = find_job(client.jobs(), self.job.name_id)
        except NotPossible:
            raise NotPossible(f"job {self.job.name_id} has ended meanwhile, without an answer") from None
        except SpotburstError:
            return
        if over(shown):
            raise NotPossible(f"job {self.job.name_id} has ended meanwhile ({words(shown)}), without an answer")


def target(job: Job, typed: str, name: str | None, where: Place) -> Target:
    """The attempt of this running job. Raises ``NotPossible`` or ``UsageError`` that says why it can't be asked, ``StoreError``."""
    try:
        run = find_run(where, typed, name, job)
    except UsageError as error:
        raise UsageError(f"job {typed} can't be asked: is its program started by `spotburst run`? {error}") from None
    try:
        entries = RunLog(where.store, run).entries()
    except Damaged as error:
        raise NotPossible(f"job {typed} can't be asked: its run's log can't be read: {error}") from error
    if not entries:
        raise NotPossible(f"job {typed} has not reached `spotburst run` yet: ask again in a moment")
    tail = entries[-1]
    claim = next(entry for entry in reversed(entries) if entry.kind is Kind.CLAIM)
    why = can_not_be_asked(job, tail, claim)
    if why is not None:
        raise NotPossible(f"job {job.name_id} can't be asked: {why}")
    return Target(job, where, run, tail, frozenset(asked.read_answers(where.store, run, tail.epoch)))


def newest(job: Job, typed: str, name: str | None, look: Callable[[], Place]) -> tuple[Entry | None, str | None]:
    """The newest entry of the log of a job's run, and the run's path; None where that can't be told from here. ``look`` for its store."""
    try:
        where = look()
        run = find_run(where, typed, name, job)
        return RunLog(where.store, run).tail(), run
    except SpotburstError:
        return None, None  # it never reached `spotburst run`, or its store can't be reached from here


def can_not_be_asked(job: Job, tail: Entry, claim: Entry) -> str | None:
    """Why this job's attempt would not hear or not answer, from its log's newest entry and newest claim; None if it would. Pure."""
    by = tail.writer
    if by.job_id not in (job.name_id, str(job.job_id)):
        return f"its run {tail.writer.cluster}/… is now job {by.job_id}'s"
    if by.restart_count < job.restart_count:
        return f"its present attempt (restart {job.restart_count}) has not reached `spotburst run` yet. Ask again in a moment"
    if tail.kind is Kind.END:
        return f"its program has ended with exit code {tail.summary.ended}, though the job goes on"
    if tail.kind in (Kind.INTERRUPTED, Kind.SUSPENDED):
        return f"its attempt is ending already ({tail.body.get('reason') or 'suspended'})"
    if claim.body.get("continuity") == EPHEMERAL:
        return "it keeps no checkpoints (--continuity ephemeral)"
    if claim.writer.step_id == BATCH_STEP:
        return (
            "its wrapper runs in the batch script itself, which no signal of Slurm's reaches: put `srun` before `spotburst run`. "
            "It goes on committing at its interval"
        )
    if not claim.body.get(asked.HEARS):
        return (
            "it was started by a spotburst that is too old to be asked. It goes on committing at its interval; "
            "update spotburst on the nodes, and its next attempt can be asked"
        )
    return None
