"""Which nodesets can run a job that comes back: the one it ran on, and others with as much of everything. Pure."""

from __future__ import annotations

import re

from slurm_plugin.reconcile.view import NodeSetFacts, View
from slurm_plugin.slurm.records import Job


def fitting_nodesets(view: View, job: Job) -> list[str]:
    """The one it ran on first, then those with at least as much of everything."""
    policy, seen = view.policy, view.seen.get(job.job_id)
    ran_on = next((policy.nodeset_of[n] for n in job.nodes if n in policy.nodeset_of), seen.nodeset if seen else "")
    shape = policy.nodesets[ran_on].shape if ran_on in policy.nodesets else None
    fitting = [
        facts.name
        for facts in policy.nodesets.values()
        if (shape is None or facts.shape.holds(shape))
        and job.gpus_per_node <= facts.shape.gpus
        and _features(job, facts)
    ]
    return sorted(fitting, key=lambda name: name != ran_on)


def _features(job: Job, facts: NodeSetFacts) -> bool:
    """Whether a nodeset has the features that a job asks for. Counts and brackets (``[a*2&b]``) are not understood: then no."""
    if not job.features:
        return True
    if not re.fullmatch(r"[A-Za-z0-9_.=:&|,-]+", job.features):
        return False
    return any(
        all(word in facts.shape.features for word in re.split("[&,]", alternative))
        for alternative in job.features.split("|")
    )
