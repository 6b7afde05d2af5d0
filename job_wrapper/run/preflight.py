"""What is looked at before a run is claimed: whether Slurm would bring the job back, whose the run is, and which program's."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable

from xxhash import xxh3_128_hexdigest

from job_wrapper.errors import NodeLost, NotRequeueable, Preempted, SpotburstError, StoreRefused, UsageError
from job_wrapper.slurm_job import JobView, SlurmJob
from job_wrapper.store.io_types import Entry, Kind, ObjectStore
from job_wrapper.store.log import RunLog
from job_wrapper.store.paths import job_pointer
from job_wrapper.store.posix import PosixStore

_SHOWN = 300
"""Characters of a command in a message."""


def require_requeueable(job: SlurmJob, say: Callable[[str], None]) -> JobView | None:
    """A job that Slurm won't bring back must say so before work is lost. Returns how the job stands. Raises ``NotRequeueable``."""
    view = job.view()
    if view is None:
        say("Slurm does not answer (squeue), so it is not known whether it would bring this job back; going on")
    elif not view.batch:
        raise NotRequeueable(
            f"job {job.job_id} was started by salloc or srun, and Slurm requeues only batch jobs: submit it with sbatch, "
            "or run with --on-interruption fail (checkpoints are made, nothing brings it back)"
        )
    elif not view.requeue:
        raise NotRequeueable(
            f"job {job.job_id} was submitted with --no-requeue, or the cluster has JobRequeue=0: put `#SBATCH --requeue` into "
            "its script, or run with --on-interruption fail (checkpoints are made, nothing brings it back)"
        )
    return view


def require_own(store: ObjectStore, run: str, job_id: str = "") -> None:
    """Job ids can be guessed: on a file system that several users write to, a run that another one has laid out is never restored.

    Nor is one begun whose pointers another one could take away, since nobody would find it by its job then. ``job_id``: that job's, "" outside
    Slurm, where it can't be guessed. Raises ``StoreRefused``.
    """
    if not isinstance(store, PosixStore):
        return
    pointers = [job_pointer(run.partition("/")[0], job_id, "").rstrip("/")] if job_id else []
    for folder in (run.rpartition("/")[0], run, *pointers):
        owner = store.owner(folder)
        if owner is not None and owner[0] != os.geteuid():
            raise StoreRefused(
                f"{store.uri}/{folder} belongs to user {owner[0]}, not to you: nothing of it is used. "
                "Tell the administrator, or name another place with --uri"
            )


def command_digest(command: tuple[str, ...]) -> str:
    """Tells two commands apart; not a secret."""
    return xxh3_128_hexdigest(json.dumps(command).encode())


def refuse_other_command(
    log: RunLog, last: Entry | None, attempt: tuple[str, int], digest: str, forgotten: Callable[[Entry], bool]
) -> None:
    """Two programs under one name would take each other's checkpoints. ``attempt``: job and restart count. Raises ``UsageError``.

    ``forgotten``: as for ``RunLog.claim``.

    An unfinished run's next attempt may have another command: scripts put their first node's address or the restart count into it.
    """
    if last is None or last.summary.command_digest in (None, digest):
        return
    same = (last.writer.job_id, last.writer.restart_count) == attempt and not forgotten(last)
    if same or last.summary.ended == 0:
        what = "has finished with" if last.summary.ended == 0 else "belongs to"
        other = _command_of(log)
        raise UsageError(
            f"{log.run} {what} another command than this one{f', {other}' if other else ''}: give this program a --name of its own, such as "
            "--name second, or another --run"
        )


def _command_of(log: RunLog) -> str:
    """The command of the run's newest attempt as a shell would take it, cut to one line; "" where the log does not tell."""
    with contextlib.suppress(SpotburstError):
        for entry in map(log.read, reversed(log.seqs())):
            words = entry.body.get("command")
            if entry.kind is Kind.CLAIM and isinstance(words, list):
                text = " ".join(shlex.join(map(str, words)).split())
                # It goes to a terminal, and may be another's.
                text = "".join(c if c.isprintable() else "?" for c in text)
                return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
    return ""


def lost_before(last: Entry | None, attempt: tuple[str, int]) -> SpotburstError | None:
    """With ``--on-interruption fail``: what ends this attempt before its program starts, or None. Pure.

    Slurm requeues a job whose node is lost by itself, and from 24.05 on also one that ended within its grace time. ``attempt``: job and
    restart count. Raises ``Preempted`` or ``NodeLost`` where the run's end is in the log already.
    """
    if last is None or last.writer.job_id != attempt[0] or last.writer.restart_count >= attempt[1]:
        return None
    stands = "nothing is started, since --on-interruption fail was given. Its last commit stands: `spotburst describe JOB` says how a new job goes on"
    for kind in (Preempted, NodeLost):
        if last.kind is Kind.END and last.summary.ended == kind.exit_code:
            raise kind(f"{kind.reason}: an earlier attempt of this job ended for it; {stands}")
    if last.kind in (Kind.CLAIM, Kind.COMMIT, Kind.RESTORE_FAILED):
        return NodeLost(f"the attempt on {last.writer.host} (epoch {last.epoch}) was lost without a word: {stands}")
    return None
