"""What users ask of a running attempt: how a command reaches the wrapper, and where the wrapper answers.

A user's right to a job is Slurm's to check, so the question itself goes through Slurm: ``scancel --signal=URG JOB`` reaches the steps of
one's own jobs alone. SIGURG, because whoever does not know it ignores it: other programs of the job, and older wrappers. Two things can be
asked with it, and the job's own record tells which:

- a checkpoint now, after which the program goes on;
- to be suspended: the job is marked with ``scontrol hold`` first, which leaves a running job alone and shows as priority 0. The wrapper
  commits, puts ``suspended`` into the log and has Slurm requeue the job held (``scontrol requeuehold``).

The answer is the next urgent commit in the run's log, or ``suspended`` there. Where there is none to come, the wrapper says why in a small
object of its epoch; whoever asks knows those that were there before.
"""

from __future__ import annotations

import signal
from typing import Any

from job_wrapper.store.codec import seal, unseal
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.paths import data_prefix

SIGNAL = signal.SIGURG
HEARS = "hears"
"""Key in a claim's body: 1 where the wrapper understands ``SIGNAL``."""
ASKED = "asked for"
"""Reason of such a commit in the log."""
SUSPEND_WAIT = 600.0
"""Seconds that a program may take to answer where the job is to be suspended; then it goes on as it was."""


def answers_prefix(run: str, epoch: int) -> str:
    """Where the wrapper of that epoch says why there was no checkpoint."""
    return f"{data_prefix(run, epoch)}/answers/"


def put_answer(store: ObjectStore, run: str, epoch: int, when: float, error: str) -> None:
    """Say why there was none. ``when`` in Unix seconds. Raises ``StoreError``."""
    store.put(f"{answers_prefix(run, epoch)}{int(when * 1000):014}.json", seal("answer", {"error": error[:2000]}))


def read_answers(store: ObjectStore, run: str, epoch: int) -> dict[str, str]:
    """All answers so far, key to text, oldest first. Raises ``StoreError``, ``Damaged``."""
    keys = [info.key for info in store.list(answers_prefix(run, epoch))]
    return {key: _text(unseal(store.get(key), "answer", f"{store.uri}/{key}")) for key in keys}


def _text(told: dict[str, Any]) -> str:
    return str(told.get("error") or "no reason was given")
