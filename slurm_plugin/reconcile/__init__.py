"""From what is seen to what is to be done: pure functions over a frozen ``View`` (DESIGN §2).

``decide`` gives every action that the view asks for, in the order in which they are to be done. It looks at levels, never at edges:
asked again with nothing changed, it gives the same actions; once they have taken effect, none. The tables stand where they live:
``machines`` (one node, its power state, its machines), ``reclaim`` (notices and drains), ``comeback`` (jobs that come back and the
nodes that are prepared for them), ``jobs`` (jobs that Slurm won't bring back by itself), ``costs`` (what jobs cost, and may).
"""

from __future__ import annotations

from slurm_plugin.actions import Action, Report
from slurm_plugin.reconcile.comeback import decide_comeback
from slurm_plugin.reconcile.costs import decide_costs
from slurm_plugin.reconcile.index import Index
from slurm_plugin.reconcile.jobs import decide_jobs
from slurm_plugin.reconcile.machines import decide_machines
from slurm_plugin.reconcile.reclaim import decide_notices
from slurm_plugin.reconcile.view import Listing, NodeSetFacts, Policy, Shape, View

__all__ = ["Listing", "NodeSetFacts", "Policy", "Shape", "View", "decide"]


def decide(view: View) -> tuple[Action, ...]:
    """Every action, without repetition, ordered by what must come first."""
    index = Index(view)
    found: dict[Action, None] = {}
    for part in (decide_machines, decide_notices, decide_comeback, decide_jobs, decide_costs):
        found.update(dict.fromkeys(action for action in part(view, index) if not _said(view, action)))
    return tuple(sorted(found, key=lambda action: action.order))


def _said(view: View, action: Action) -> bool:
    """A report is made once."""
    return isinstance(action, Report) and (f"job:{action.job_id}", f"said:{action.key}") in view.counters
