"""What came of a command that does something to a job: one line for people, or the same as JSON (docs/json.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from job_wrapper.store.io_types import CommitRef
from slurm_plugin.cli import output


@dataclass(frozen=True, slots=True)
class Outcome:
    """``outcome`` is one of a few words a command, ``text`` what people are told. ``step``, ``entry`` and ``epoch``: of the checkpoint that
    was made, or that the job goes on from; None where there is none, or it can't be told from here."""

    job: str
    outcome: str
    text: str
    run: str | None = None
    entry: int | None = None
    epoch: int | None = None
    step: int | None = None

    @classmethod
    def of(cls, job: str, outcome: str, text: str, run: str | None = None, commit: CommitRef | None = None) -> Outcome:
        """``commit``: that checkpoint, None where there is none."""
        made = (None, None, None) if commit is None else (commit.seq, commit.epoch, commit.step)
        return cls(job, outcome, text, run, *made)


def outcome(json: bool, told: Outcome) -> None:
    """Print it."""
    if json:
        output.as_json(asdict(told))
    else:
        output.console().print(output.printable(told.text))
