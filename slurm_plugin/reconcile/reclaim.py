"""Notices: a machine is being taken back. Recorded once under a stable id (cases 18), its node drained, withdrawn when it is withdrawn.

agent's drain   cloud's listing   recorded   done
-------------   ---------------   --------   ---------------------------------------------------------------------------
yes             any               no         record it (source agent)
no              reclaiming        no         record it (source cloud); drain the node, with a reason marked as the manager's
either one                        yes        nothing; an idle node is powered down, so that its name is free again soon
no              not reclaiming    yes        the node is up and its cloud answers: withdrawn
no              not reclaiming    any        a drain marked as the manager's is cleared
yes, overdue    not reclaiming    yes        the node outlived its notice: withdrawn, undrained
any             any               yes        the node is not up any more, or has another machine: over
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_plugin.actions import OURS, Action, Drain, EndNotice, PowerDown, RecordNotice, Undrain
from slurm_plugin.reconcile.flags import BUSY, TOLD_BY_CLOUD, Phase, agents_notice, cloud_reason, down
from slurm_plugin.reconcile.index import Index
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Node

OUTLIVED = 180.0
"""Seconds after the deadline at which a node that still answers has outlived its notice."""


def being_reclaimed(view: View, index: Index, node: Node) -> bool:
    """Whether anyone says so now, the agent or the cloud, and it has not outlived it."""
    told, deadline = agents_notice(node)
    if index.reclaiming(index.current(node.name)):
        return True
    return told and not (deadline is not None and view.now > deadline + OUTLIVED)


def decide_notices(view: View, index: Index) -> Iterator[Action]:
    """All that concerns notices, but not the replacements that they call for."""
    if view.nodes is None:
        return
    named = [name for name in view.policy.nodeset_of if name in view.nodes]
    for name in dict.fromkeys((*named, *index.notices)):
        node = view.nodes.get(name)
        phase = index.phase(name)
        if phase is Phase.UNCLEAR:
            continue
        if node is None or down(node) or phase not in (Phase.UP, Phase.COMING_UP):
            for notice in index.notices.get(name, ()):
                yield EndNotice(notice.notice_id, name, "over")
        elif name in view.policy.nodeset_of:
            yield from _standing(view, index, node, phase)


def _standing(view: View, index: Index, node: Node, phase: Phase) -> Iterator[Action]:
    name = node.name
    current = index.current(name)
    launch_id = current.launch_id if current else ""
    machine = index.reclaiming(current)
    told, deadline = agents_notice(node)
    outlived = told and machine is None and deadline is not None and view.now > deadline + OUTLIVED
    mine = [n for n in index.notices.get(name, ()) if n.launch_id == launch_id]
    for notice in index.notices.get(name, ()):
        if notice not in mine:
            yield EndNotice(notice.notice_id, name, "over")

    if being_reclaimed(view, index, node):
        if not mine and (current is not None or phase is Phase.UP):
            by = machine.deadline if machine is not None and machine.deadline is not None else deadline
            notice_id = (
                machine.notice_id if machine else None
            ) or f"{launch_id or name}:{int(by) if by else 'reclaim'}"
            yield RecordNotice(
                notice_id,
                name,
                launch_id,
                current.offering_id if current else "",
                by,
                "cloud" if machine is not None and not told else "agent",
            )
        if machine is not None and phase is Phase.UP and not node.has("DRAIN"):
            provider = current.provider if current else "cloud"
            yield Drain(name, cloud_reason(provider, machine.deadline))
        elif phase is Phase.UP and _idle_and_drained(view, index, node):
            yield PowerDown(name, "is being reclaimed and runs nothing")
        return

    if current is not None and not index.known(current.provider):
        return
    if phase is Phase.UP:
        for notice in mine:
            yield EndNotice(notice.notice_id, name, "withdrawn")
        if node.has("DRAIN") and (outlived or (node.reason.startswith(OURS) and node.reason.endswith(TOLD_BY_CLOUD))):
            yield Undrain(name, "outlived its notice" if outlived else "the notice was withdrawn")


def _idle_and_drained(view: View, index: Index, node: Node) -> bool:
    return (
        node.has("DRAIN")
        and node.reason.startswith(OURS)
        and not node.has(*BUSY, "POWER_DOWN")
        and view.jobs is not None
        and not index.jobs_on.get(node.name)
    )
