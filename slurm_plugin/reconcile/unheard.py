"""Nodes that slurmctld takes for booting though their slurmd has registered: it was killed before it saved that, and before a pass saw it.

slurmctld asks nothing of a node that boots (ping_nodes.c, 22.05 to 26.05), and slurmd registers of its own accord only until that has been
answered once. So neither ever hears from the other, and ResumeTimeout ends the node. Where a pass has seen the node up, ``machines``
gives it up by that (``STRANDED``). Where none has, this tells it: the machine is older than slurmctld, and its slurmd, which would have
registered by now if it were to, takes connections.

The same becomes of a node that slurmctld asked for and was killed before it saved that: it asks anew, and passes over the registration of
the machine that is there, which booted before (22.05.8).

A slurmd whose registration is refused (munge, clocks) looks the same. It too is given up, once, where slurmctld was started after the
machine was launched; the next machine is younger than slurmctld, and has ResumeTimeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_plugin.ledger_records import Intent, IntentState
from slurm_plugin.reconcile.flags import Phase, phase
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Node

REGISTERS = 30.0
"""Seconds that slurmd may take from its port's opening to its registration, or for one try of that."""
HEALTH_CHECK = 60.0
"""Seconds for which slurmd lets HealthCheckProgram run between the two (slurmd.c, 22.05 to 26.05: its port is open before)."""
LONGEST_PAUSE = 128.0
"""Seconds. slurmd that gets no answer tries again after 1, 2, 4, … seconds, up to this (slurmd.c, 22.05 to 26.05)."""


def never_seen(nodes: Mapping[str, Node], intents: Iterable[Intent]) -> list[Intent]:
    """Launches of nodes that boot by Slurm's records, whose machines no pass has seen as nodes."""
    return [i for i in intents if _unseen(i) and phase(nodes.get(i.node)) is Phase.COMING_UP]


def never_heard(view: View, intent: Intent) -> bool:
    """Whether slurmctld will never hear from the slurmd of this launch, whose node boots by Slurm's records.

    A slurmd that began while slurmctld was away has tried for no longer than its machine is old, and pauses for no longer than it has tried.
    """
    facts = view.boots
    began, answers, listens = facts.slurmctld_began, facts.answers_since, facts.listening_since.get(intent.launch_id)
    if began is None or answers is None or listens is None or not _unseen(intent) or intent.created >= began:
        return False
    if view.now - listens < REGISTERS + (HEALTH_CHECK if facts.health_check else 0.0):
        return False
    back = max(began, answers)
    return view.now - max(back, listens) >= REGISTERS + min(back - intent.created, LONGEST_PAUSE)


def _unseen(intent: Intent) -> bool:
    return not intent.registered and intent.state is IntentState.LIVE
