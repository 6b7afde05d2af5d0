"""What is looked at before a run is claimed: whether Slurm would bring the job back, and whose the run is."""

from __future__ import annotations

import os
from collections.abc import Callable

from job_wrapper.errors import NotRequeueable, StoreRefused
from job_wrapper.slurm_job import SlurmJob
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.posix import PosixStore


def require_requeueable(job: SlurmJob, say: Callable[[str], None]) -> None:
    """A job that Slurm won't bring back must say so before work is lost. Raises ``NotRequeueable``."""
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


def require_own(store: ObjectStore, run: str) -> None:
    """Job ids can be guessed: on a file system that several users write to, a run that another one has laid out is never restored.

    Raises ``StoreRefused``.
    """
    if isinstance(store, PosixStore):
        for folder in (run.rpartition("/")[0], run):
            owner = store.owner(folder)
            if owner not in (None, os.geteuid()):
                raise StoreRefused(
                    f"{store.uri}/{folder} belongs to user {owner}, not to you: nothing of it is used. "
                    "Tell the administrator, or name another place with --uri"
                )
