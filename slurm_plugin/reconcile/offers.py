"""What may be bought for whom: each job's situation, and the plan that follows from it. Made once a pass, each plan once."""

from __future__ import annotations

import math

from slurm_plugin.ledger_records import WAITING
from slurm_plugin.placement import Need, Plan, Rules, plan
from slurm_plugin.placement.limit import cost_limit
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Job

ANYBODY = Need()


class Offers:
    """Plans by nodeset and need."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._plans: dict[tuple[str, Need], Plan] = {}
        since = [counter.last for (_, kind), counter in view.counters.items() if kind == WAITING]
        self._loosest = Need(
            failures=max((job.restart_count for job in view.jobs or () if job.has("PENDING")), default=0),
            waited=max(0.0, view.now - min(since)) if since else 0.0,
        )

    def of(self, nodeset: str, job: Job | None = None) -> Plan:
        """For one job; for nobody in particular where there is none."""
        need = ANYBODY if job is None else need_of(self.view, job, self.view.policy.nodesets[nodeset].rules)
        return self._plan(nodeset, need)

    def loosest(self, nodeset: str) -> Plan:
        """What might be bought for one of the jobs that wait: whether a node is worth giving back to the pool."""
        rules = self.view.policy.nodesets[nodeset].rules
        return self._plan(nodeset, _looked_at(rules, self._loosest))

    def _plan(self, nodeset: str, need: Need) -> Plan:
        found = self._plans.get((nodeset, need))
        if found is None:
            facts, view = self.view.policy.nodesets[nodeset], self.view
            found = plan(
                facts.offerings,
                view.offerings,
                view.now,
                view.silent_providers,
                facts.rules,
                need,
                view.known,
                facts.shape.size,
            )
            self._plans[nodeset, need] = found
        return found


def situation(job: Job, waits_since: float | None, left: float | None, now: float, rules: Rules) -> Need:
    """A job's. ``rules``: of the nodeset that it is about. ``waits_since``: since when it finds no capacity (Unix seconds); ``left``: share of its work. None: it finds some; not known."""
    return Need(
        capped=cost_limit(job.comment, rules).limit is not None,
        together=job.node_count > 1 and not rules.across_zones,
        failures=job.restart_count,
        waited=0.0 if waits_since is None else max(0.0, now - waits_since),
        left=left,
        # The time limit is for the whole of the work, so that what is left of it takes its share at most.
        remaining=job.time_limit * (1.0 if left is None else left) if job.time_limit else None,
        deadline=float(job.deadline) if job.deadline else None,
    )


def need_of(view: View, job: Job, rules: Rules) -> Need:
    """A job's situation, as far as the nodeset's rules look at it (so that jobs alike share a plan)."""
    since = view.counters.get((f"job:{job.job_id}", WAITING))
    left = min((tail.left for tail in view.runs.get(job.job_id, ()) if tail.left is not None), default=None)
    return _looked_at(rules, situation(job, since.last if since else None, left, view.now, rules))


def _looked_at(rules: Rules, need: Need) -> Need:
    after, wait = rules.on_demand_after_failures, rules.on_demand_after_wait
    dated = rules.policy.value == "deadline"
    return Need(
        capped=need.capped,
        together=need.together,
        failures=need.failures if after is not None else 0,
        waited=0.0 if wait is None else need.waited if need.waited < wait else math.ceil(need.waited / wait) * wait,
        left=need.left if rules.final_on_demand else None,
        remaining=need.remaining if dated else None,
        deadline=need.deadline if dated else None,
    )
