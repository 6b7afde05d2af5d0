"""Nodes that go away under a job that is about to be requeued.

The node's agent drains them, as a rule within the second. Where Slurm does not show that yet (a busy slurmctld), or nobody drains (no agent),
the job could be started again on a node that goes away: an attempt that has nothing to show. So they are named in the job's comment,
before the requeue, and the manager does not start the job while Slurm could use one of them (slurm_plugin/reconcile/comeback.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from job_wrapper.comments import with_left
from job_wrapper.slurm_job import SlurmJob


def tell(job: SlurmJob, nodes: Iterable[str], now: float) -> None:
    """Name those that Slurm could still use. ``now``: Unix seconds. Whatever Slurm does not answer is passed over: the requeue comes first."""
    going = sorted({name for name in nodes if name})
    out = job.out_of_use(",".join(going)) if going else frozenset()
    left = [name for name in going if name not in out]
    standing = job.comment() if left else None
    if standing is not None:
        job.set_comment(with_left(standing, left, now))
