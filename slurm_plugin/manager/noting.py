"""Actions that only the ledger is told of: what was decided or seen, so that the next pass, or the next manager, knows it."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_plugin import actions
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import OpenNotice
from slurm_plugin.manager.say import log
from slurm_plugin.placement import same_zone

NOTED = (
    actions.Adopt,
    actions.ChargeBegins,
    actions.ChargeEnds,
    actions.Close,
    actions.EndNotice,
    actions.EndReplacement,
    actions.ForgetJob,
    actions.ForgetReleases,
    actions.NoteRegistered,
    actions.RecordNotice,
    actions.RememberJob,
    actions.Retire,
    actions.WaitBegins,
    actions.WaitEnds,
)
"""What ``write_down`` writes."""


def write_down(action: actions.Action, ledger: Ledger, offerings: Mapping[str, Offering], now: float) -> None:
    """Nothing for an action of another kind. ``offerings``: all of the settings', by id; ``now`` in Unix seconds."""
    if isinstance(action, actions.Adopt):
        log.info("found by its tag", node=action.node, launch_id=action.launch_id, instance=action.instance_id)
        ledger.adopt(
            launch_id=action.launch_id,
            instance_id=action.instance_id,
            node=action.node,
            nodeset=action.nodeset,
            provider=action.provider,
            offering_id=action.offering_id,
            launched=action.launched,
        )
    elif isinstance(action, actions.NoteRegistered):
        ledger.registered(action.launch_id)
    elif isinstance(action, actions.RecordNotice):
        _notice(action, ledger, offerings, now)
    elif isinstance(action, actions.EndNotice):
        if ledger.end_notice(action.notice_id, action.outcome):
            log.info("notice ended", node=action.node, outcome=action.outcome)
    elif isinstance(action, actions.RememberJob):
        ledger.remember_job(action.job_id, action.restart_count, action.nodeset, action.nodes)
    elif isinstance(action, actions.ForgetJob):
        ledger.forget_job(action.job_id)
    elif isinstance(action, actions.WaitBegins):
        ledger.wait_begins(action.job_id)
    elif isinstance(action, actions.WaitEnds):
        ledger.wait_ends(action.job_id)
    elif isinstance(action, actions.ForgetReleases):
        ledger.forget_releases(action.job_id)
    elif isinstance(action, actions.ChargeBegins):
        ledger.charge_begins(action.charge, action.offering_id, action.price)
    elif isinstance(action, actions.ChargeEnds):
        ledger.charge_ends(action.charge, action.ended)
    elif isinstance(action, actions.Retire):
        ledger.retire(action.launch_id, action.why, blame=action.blame)
    elif isinstance(action, actions.Close):
        ledger.close_intent(action.launch_id, action.why, blame=action.blame)
    elif isinstance(action, actions.EndReplacement) and ledger.end_replacement(
        action.job_id, action.node, action.outcome
    ):
        log.info("replacement ended", node=action.node, job=action.job_id, outcome=action.outcome)


def _notice(action: actions.RecordNotice, ledger: Ledger, offerings: Mapping[str, Offering], now: float) -> None:
    notice = OpenNotice(
        action.notice_id, action.node, action.launch_id, action.offering_id, action.deadline, action.source, now
    )
    if not ledger.record_notice(notice):
        return
    log.warning("reclaim", node=action.node, launch_id=action.launch_id, deadline=action.deadline, by=action.source)
    offering = offerings.get(action.offering_id)
    if offering is not None:
        for offering_id in same_zone(offering, offerings.values()):
            ledger.offering_reclaimed(offering_id)
