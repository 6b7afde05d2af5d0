"""Whom a node is for, and which machines come together: those of one job of several nodes, all or not at all, those that are prepared for it too."""

from __future__ import annotations

from slurm_plugin.reconcile.flags import Phase, down
from slurm_plugin.reconcile.index import Index
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Job

GATHER = 30.0
"""Seconds after a job got its nodes, or they were prepared for it, in which those that can be made wait for those that can't yet."""


def waiting(view: View, index: Index, name: str) -> tuple[Job, ...]:
    """The jobs on the node, and those that it is prepared for."""
    comes_back = [index.job[r.job_id] for r in view.replacements if r.node == name and r.job_id in index.job]
    return (*index.jobs_on.get(name, ()), *comes_back)


def whose(view: View, index: Index, name: str) -> Job | None:
    """The first of them."""
    return next(iter(waiting(view, index, name)), None)


def gang(view: View, index: Index, name: str) -> str | None:
    """Name of the gang that the node's machine belongs to; None where it comes by itself."""
    for job in waiting(view, index, name):
        if name in job.nodes and len(job.nodes) > 1:
            return f"job-{job.job_id}-{job.restart_count}"
        if name not in job.nodes and job.node_count > 1:
            return f"job-{job.job_id}-{job.restart_count}-ahead"
    return None


def gathers(view: View, index: Index, name: str) -> bool:
    """Whether another node of the gang is about to need a machine too: all are asked for in one call."""
    for job in waiting(view, index, name):
        mates, since = _mates(view, job, name)
        young = since > 0 and view.now - since <= GATHER
        if len(mates) > 1 and young and any(_needs_soon(view, index, mate) for mate in mates):
            return True
    return False


def _mates(view: View, job: Job, name: str) -> tuple[tuple[str, ...], float]:
    """All nodes of the gang, and since when this one belongs to it (Unix seconds)."""
    if name in job.nodes:
        return job.nodes, float(job.start_time)
    ahead = [r for r in view.replacements if r.job_id == job.job_id]
    return tuple(r.node for r in ahead), max(r.created for r in ahead if r.node == name)


def _needs_soon(view: View, index: Index, name: str) -> bool:
    phase, node = index.phase(name), index.node(name)
    if node is None or down(node) or name not in view.policy.nodeset_of:
        return False
    if phase in (Phase.ASKED_UP, Phase.OFF, Phase.GOING_OFF):
        return True
    return phase is Phase.COMING_UP and index.current(name) is None and not index.name_is_free(name)
