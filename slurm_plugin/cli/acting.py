"""For the commands that do something to a job: which job is meant, how it stands, and what Slurm's refusals mean.

They act by Slurm's own commands under the caller's own rights, so a user can do to a job what Slurm lets that user do to it, and nothing else.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import typer

from job_wrapper.errors import SpotburstError, UsageError
from slurm_plugin.cli import completion
from slurm_plugin.cli.asking import PlainClient
from slurm_plugin.cli.job_ids import holds, instead_of, is_job_id
from slurm_plugin.config import Config
from slurm_plugin.errors import SlurmRefused
from slurm_plugin.requeue import ENDED_STATES
from slurm_plugin.slurm.records import Job

_NOT_YOURS = re.compile(r"permission denied|invalid user id|not authorized", re.IGNORECASE)
_NO_SUCH = re.compile(r"invalid job id", re.IGNORECASE)

SlurmJobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id as Slurm shows it: 123, 123_4 of an array, 123+1 of a heterogeneous job.",
        autocompletion=completion.jobs,
    ),
]


class NotPossible(SpotburstError):
    """The job is not in a state in which this can be done to it."""

    reason = "NotPossible"


def commands(config: Config | None) -> PlainClient:
    """Slurm's commands, as burst.yaml names their place and slurm.conf, or by PATH and SLURM_CONF."""
    return PlainClient(config)


def find_job(jobs: Sequence[Job], wanted: str) -> Job:
    """The one that JOB means. Raises ``UsageError`` for what is no job id, or a whole array; ``NotPossible`` where Slurm shows none. Pure."""
    if not is_job_id(wanted):
        told = (
            instead_of(wanted)
            or f"{wanted!r} is not a job id: write 123, or 123_4 for a task of an array, as squeue shows it"
        )
        raise UsageError(told)
    exact = [job for job in jobs if job.name_id == wanted]
    # Tasks that wait are one record, 123_[4-9], until Slurm starts them or is told something of one.
    exact = exact or [replace(job, name_id=wanted) for job in jobs if holds(job.name_id, wanted)]
    tasks = sorted(job.name_id for job in jobs if job.name_id.startswith(f"{wanted}_"))
    if not exact and tasks:
        raise UsageError(
            f"job {wanted} is an array: say which task, such as {tasks[0]} (Slurm shows {', '.join(tasks[:8])})"
        )
    # 123+1 is the second part of a heterogeneous job, which has a number of its own.
    found = exact or [job for job in jobs if str(job.job_id) == wanted]
    if not found:
        raise NotPossible(
            f"job {wanted}: Slurm shows no such job: it ended more than some minutes ago, or never was, or others' jobs are hidden here. "
            f"`spotburst describe {wanted}` tells what its run's log says"
        )
    return found[0]


def words(job: Job) -> str:
    """A job's state as messages name it: ``RUNNING``, ``PENDING (Priority)``."""
    state = "+".join(sorted(job.states))
    return f"{state} ({job.reason})" if job.has("PENDING") and job.reason not in ("", "None") else state


def over(job: Job) -> bool:
    """It has ended, and is not on its way to another attempt. Pure."""
    return job.has(*ENDED_STATES) and not job.has("PENDING", "RUNNING", "REQUEUED", "REQUEUE_HOLD")


def require_running(job: Job, what: str) -> None:
    """Raises ``NotPossible`` unless the job's steps run. ``what`` is to be done: "there is nothing to checkpoint". Pure."""
    if job.running and not job.has("SUSPENDED"):
        return
    if over(job):
        why = f"has ended ({words(job)})"
    elif job.has("COMPLETING"):
        why = "is just ending an attempt"
    elif job.has("SUSPENDED"):
        why = "is stopped by `scontrol suspend`, so its program can't save; scontrol resume lets it run"
    elif job.has("CONFIGURING"):
        why = "waits for its nodes to boot"
    else:
        why = f"does not run: {words(job)}"
    raise NotPossible(f"job {job.name_id} {why}: {what}")


@contextmanager
def as_owner(job: Job) -> Iterator[None]:
    """What Slurm's refusals within mean for this job. Raises ``NotPossible`` in their place, ``SlurmRefused`` for any other."""
    try:
        yield
    except SlurmRefused as error:
        if _NOT_YOURS.search(str(error)):
            me = pwd.getpwuid(os.geteuid()).pw_name
            raise NotPossible(
                f"job {job.name_id} belongs to {job.user}, not to you ({me}): Slurm lets only its owner, or an administrator, do this"
                if job.user != me
                else f"job {job.name_id}: Slurm does not let you do this: {error}"
            ) from error
        if _NO_SUCH.search(str(error)):
            raise NotPossible(f"job {job.name_id} has just ended: Slurm does not know it any more") from error
        raise
