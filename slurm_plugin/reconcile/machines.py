"""One node, its power state, and the machines that bear its name: launch, end, set down, give back to the pool.

What machine a node is to have, and what is done about its *current* intent (the newest that is not retired):

    phase       DOWN?          current intent's machine          done
    ----------  -------------  --------------------------------  ------------------------------------------------------------
    any         any            older than a suspend/resume_fail  end it (cases 13); whatever else the node is
    any         any            not current (retired, replaced)   end it until it is gone; close it then
    UNCLEAR     any            any                               nothing
    ABSENT      -              any                               end it, once absent and old enough (cases 9)
    GOING_OFF   no             any                               end it
    GOING_OFF   recoverable    any                               end it; name free and something to buy: resume
    OFF         no             any                               end it once old enough (cases 8, 9)
    OFF         no, DRAIN ours -                                 undrain
    OFF         no, a job runs on it for STRANDED                set down: the job is requeued (slurmctld was killed, and recalls it so)
    OFF         recoverable    any                               end it; name free and something to buy: resume (cases 2, R7)
    ASKED_UP    no             any                               nothing: wait for POWERING_UP
    COMING_UP   no             none                              name free: an address that is nobody's, if it has none; then
    COMING_UP   no             none                              launch (a registration older than POWERING_UP is ignored)
    COMING_UP   no             none, mates not ready yet         wait a little, so that all of the job's machines are asked for in one call
    COMING_UP   no             none, nothing to buy              wait if that is short, else set down "no capacity"
    COMING_UP   no             asked, not in the listing         ask again with the same launch id (cases 12)
    COMING_UP   no             pending, running                  nothing: wait for the registration
    COMING_UP   no             gone, stopping, reclaiming        end or close it, blame its offering unless it ever registered; launch when the name is free
    COMING_UP   no, POWER_DOWN or DRAIN ours, and no job         power down by force: nobody waits for it
    COMING_UP   no, DRAIN not ours                               nothing is launched
    COMING_UP   no             registered, for STRANDED          set down, end it (slurmctld was killed, and recalls it as booting)
    COMING_UP   no             running, older than slurmctld,    set down, end it (see ``unheard``)
                               its slurmd has long listened
    COMING_UP   recoverable    any                               end it, power down
    UP          no             none                              retired ones not gone, or silent long enough: set down. Otherwise not our machine: leave
    UP          no             gone, stopping                    set down: its jobs are requeued at once (cases 14)
    UP          no             silent long enough                set down, end it
    UP          no             fine                              note that it registered; its own address where it has nobody's (cases 10)
    UP          no, LAUNCHED_TWICE, and nothing completes there  undrain
    UP          recoverable    any                               end it, power down ("Not responding": only if it is silent or gone)
    any         not ours       any                               left to the administrator who set it down

A LIVE intent is closed only once Slurm does not show its node UP any more: until then it is what tells that the node is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from slurm_plugin.actions import (
    NOWHERE,
    OURS,
    Action,
    Adopt,
    Close,
    DropRequest,
    Launch,
    NoteRegistered,
    PowerDown,
    Report,
    Resume,
    Retire,
    SetAddress,
    SetDown,
    Terminate,
    Undrain,
    WaitBegins,
)
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.ledger_records import Intent, IntentState
from slurm_plugin.placement import SHORT_WAIT, describe
from slurm_plugin.reconcile.flags import (
    BUSY,
    LAUNCHED_TWICE,
    NO_CAPACITY,
    NOTHING_TO_BUY,
    REFUSED,
    Phase,
    down,
    to_be_recovered,
)
from slurm_plugin.reconcile.gangs import gang, gathers, waiting, whose
from slurm_plugin.reconcile.index import Index
from slurm_plugin.reconcile.unheard import never_heard
from slurm_plugin.reconcile.view import View
from slurm_plugin.reconcile.zones import Bound, bound_of
from slurm_plugin.slurm.records import Node

REPEAT_ASKING = 5.0
"""Seconds after which a launch whose answer is unknown is asked again."""
STRANDED = 10.0
"""Seconds for which a node must be off while a job runs on it by Slurm's records, or boot after it has registered; two answers of one moment
may differ.

A slurmctld that was killed recalls nodes and jobs as they were last saved, up to 5 minutes ago, and never compares the two (22.05.8). A node
that it takes for booting is lost to it until ResumeTimeout: it asks no such node anything, and a slurmd registers of its own accord only when
it starts. Nor does it know the address."""


def decide_machines(view: View, index: Index) -> Iterator[Action]:
    """All that concerns nodes and machines, but not notices."""
    names = dict.fromkeys((*view.policy.nodeset_of, *index.intents, *index.machines))
    for name in names:
        yield from _adopt(view, index, name)
        yield from _end(view, index, name)
        node = index.node(name)
        if node is None or view.nodes is None or name not in view.policy.nodeset_of:
            continue
        if down(node):
            yield from _recover(view, index, node)
        else:
            yield from _in_use(view, index, node)
    yield from _requests(view, index)


# --- machines and intents ---------------------------------------------------------------------------------------------


def _adopt(view: View, index: Index, name: str) -> Iterator[Action]:
    """Cases 12: machines that the listing shows and the ledger does not know, wholly or by instance id."""
    for provider, machine in index.machines.get(name, ()):
        intent = index.intent.get(machine.launch_id)
        if intent is None or intent.instance_id != machine.instance_id or intent.state is IntentState.ASKED:
            yield Adopt(
                provider,
                machine.launch_id,
                machine.instance_id,
                machine.node,
                machine.nodeset,
                machine.offering_id,
                machine.launched,
            )


def _end(view: View, index: Index, name: str) -> Iterator[Action]:
    """End what is not wanted, close what is gone."""
    current = index.current(name)
    phase = index.phase(name)
    for intent in index.intents.get(name, ()):
        why = "" if intent.state is IntentState.RETIRED else _unwanted(view, index, intent, current)
        if index.finished(intent):
            # While Slurm shows the node up, the open intent is what tells that it is lost.
            if phase is not Phase.UP and phase is not Phase.UNCLEAR:
                boot = intent is current and phase is Phase.COMING_UP and not intent.registered
                yield Close(intent.launch_id, name, "its machine is gone", blame=boot)
        elif intent.state is IntentState.RETIRED or why:
            yield from _terminate(
                index, intent, why or intent.why, blame=why in _BLAMED and intent.state is IntentState.LIVE
            )


_LOST_CONTACT = "registered and was lost later, while slurmctld took it for booting"
"""slurmctld was killed and recalls the node as it was last saved: ResumeTimeout sets it down, though jobs ran on it (22.05.8)."""
_REGISTERED_LATE = "did not register within ResumeTimeout"
_DIED_BOOTING = "ended while it booted"
_RECLAIMED_BOOTING = "was reclaimed while it booted"
_BLAMED = (_REGISTERED_LATE, _DIED_BOOTING)


def _unwanted(view: View, index: Index, intent: Intent, current: Intent | None) -> str:
    """Why an open, unretired intent's machine is to be ended; "" if it is not."""
    name = intent.node
    if intent is not current:
        return "replaced by a newer launch"
    node, phase = index.node(name), index.phase(name)
    if phase is Phase.UNCLEAR:
        return ""
    old = view.now - intent.created > view.policy.orphan_grace
    if node is None:
        absent = view.absent_since.get(name)
        return "Slurm has no such node" if old and absent and view.now - absent > view.policy.orphan_grace else ""
    if down(node) and node.reason.lower().startswith("resumetimeout reached"):
        return _LOST_CONTACT if intent.registered else _REGISTERED_LATE
    if intent.created < index.cut.get(name, 0.0):
        return "Slurm powered its node down"
    if phase is Phase.GOING_OFF:
        return "Slurm powers its node down"
    if down(node) and to_be_recovered(node) and not _may_come_back(view, index, node, intent):
        return "its node is down: " + node.reason.removeprefix(OURS)
    if phase is Phase.OFF:
        return "its node is powered down" if old else ""
    if phase is Phase.COMING_UP and index.going(intent):
        return _LOST_CONTACT if intent.registered else _DIED_BOOTING
    if phase is Phase.COMING_UP and index.reclaiming(intent):
        return _RECLAIMED_BOOTING
    return ""


def _may_come_back(view: View, index: Index, node: Node, current: Intent | None) -> bool:
    """Down as "Not responding", but its machine runs and answers again: with ReturnToService it comes back by itself."""
    return (
        node.reason.lower().startswith("not responding")
        and index.phase(node.name) is Phase.UP
        and current is not None
        and not index.going(current)
        and index.silent_for(node.name) < view.policy.silent_prepare
    )


def _terminate(index: Index, intent: Intent, why: str, *, blame: bool) -> Iterator[Action]:
    machine = index.machine(intent)
    instance_id = machine.instance_id if machine else intent.instance_id
    if machine is not None and machine.state is InstanceState.STOPPING:
        instance_id = ""  # on its way already
    if instance_id and index.known(intent.provider):
        yield Terminate(intent.provider, instance_id, intent.launch_id, intent.node, why, blame)
    elif intent.state is not IntentState.RETIRED:
        yield Retire(intent.launch_id, intent.node, why, blame)


# --- nodes that are DOWN ----------------------------------------------------------------------------------------------


def _recover(view: View, index: Index, node: Node) -> Iterator[Action]:
    """Bring a DOWN node back into the pool: off first, then ``resume``. On 22.05.8 ``resume`` works as soon as POWERING_DOWN."""
    if not to_be_recovered(node):
        return
    phase, current = index.phase(node.name), index.current(node.name)
    if phase in (Phase.OFF, Phase.GOING_OFF):
        waits = (
            node.reason.startswith(NOTHING_TO_BUY) and not index.offers.loosest(view.policy.nodeset_of[node.name]).ready
        )
        if index.name_is_free(node.name) and not waits:
            yield Resume(node.name, f"was down: {node.reason.removeprefix(OURS)}")
    elif phase in (Phase.UP, Phase.COMING_UP, Phase.ASKED_UP) and not _may_come_back(view, index, node, current):
        yield PowerDown(node.name, f"is down: {node.reason.removeprefix(OURS)}")


# --- nodes that Slurm uses --------------------------------------------------------------------------------------------


def _in_use(view: View, index: Index, node: Node) -> Iterator[Action]:
    phase = index.phase(node.name)
    if phase is Phase.UP:
        current = index.current(node.name)
        if current is not None and current.state is IntentState.LIVE and not current.registered:
            yield NoteRegistered(current.launch_id, node.name)
        if node.address == NOWHERE:  # registered, and slurmctld did not take its address from that (``cloud_dns``)
            machine = index.machine(current) if current else None
            yield SetAddress(node.name, (machine.address if machine else "") or node.name)
        if node.has("DRAIN") and node.reason == LAUNCHED_TWICE and not node.has("COMPLETING"):
            yield Undrain(node.name, "slurmctld had launched a job on it a second time, and has ended that job there")
        yield from _lost(view, index, node)
    elif phase is Phase.COMING_UP:
        yield from _boot(view, index, node)
    elif phase is Phase.OFF:
        yield from _nowhere(node)  # Slurm may have signals for its next job before a pass has seen it powered up
        if _stranded(view, node.name):
            jobs = ", ".join(job.name_id for job in index.jobs_on.get(node.name, ()))
            yield SetDown(
                node.name,
                f"{OURS}is off, though job {jobs} runs on it",
                f"{node.name} is off: the job can't be running there",
            )
        elif node.has("DRAIN") and node.reason.startswith(OURS) and not node.has("POWER_DOWN"):
            yield Undrain(node.name, "it is off")


def _nowhere(node: Node) -> Iterator[Action]:
    """Nobody's address for a node that has only its name. Not once a machine may have registered: its own might be lost."""
    if node.address == node.name:
        yield SetAddress(node.name, NOWHERE)


def _lost(view: View, index: Index, node: Node) -> Iterator[Action]:
    current = index.current(node.name)
    if current is None:
        left = index.intents.get(node.name)
        if left and any(index.known(i.provider) for i in left):
            yield SetDown(
                node.name, f"{OURS}{left[-1].instance_id or 'its machine'} is ended", f"{node.name} was ended"
            )
        elif not left and _silent(view, index, node):
            # Closed, when Slurm had powered it down: a slurmctld that was killed just after that knows nothing of it.
            yield _unreachable(view, node)
        return
    if current.created < index.cut.get(node.name, 0.0):
        return  # Slurm's snapshot is older than its own request
    if index.going(current):
        yield SetDown(
            node.name, f"{OURS}{current.instance_id or 'its machine'} is gone", f"{node.name} was lost without notice"
        )
    elif _silent(view, index, node):
        yield _unreachable(view, node)


def _silent(view: View, index: Index, node: Node) -> bool:
    return index.silent_for(node.name) >= view.policy.silent_down and not view.own_network_suspect


def _stranded(view: View, name: str) -> bool:
    return view.now - view.stranded_since.get(name, view.now) >= STRANDED


def _why_unheard(view: View, current: Intent) -> str:
    """Why a node that boots by Slurm's records will never register; "" if it may."""
    if current.registered and _stranded(view, current.node):
        return "it has registered"
    return "its slurmd runs" if never_heard(view, current) else ""


def _unreachable(view: View, node: Node) -> SetDown:
    since = datetime.fromtimestamp(view.silent_since[node.name], timezone.utc).strftime("%H:%M:%SZ")
    return SetDown(node.name, f"{OURS}no contact since {since}", f"{node.name} could not be reached since {since}")


def _boot(view: View, index: Index, node: Node) -> Iterator[Action]:
    name, nodeset = node.name, view.policy.nodeset_of[node.name]
    current = index.current(name)
    if current is not None and current.created < index.cut.get(name, 0.0):
        current = None  # Slurm has powered it down since
    if current is not None and (why := _why_unheard(view, current)):
        # Not only given another machine: a job that it recalls here may have run, and is another attempt from now on.
        yield from _nowhere(node)
        yield SetDown(name, f"{OURS}slurmctld takes it for booting, and {why}", f"slurmctld lost sight of {name}")
        return
    wanted = node.has(*BUSY)
    if not wanted and (node.has("POWER_DOWN") or (node.has("DRAIN") and node.reason.startswith(OURS))):
        yield PowerDown(name, "nobody waits for it", force=True)
        return
    if node.has("DRAIN"):
        return
    if current is not None:
        if (
            current.state is IntentState.ASKED
            and not index.machines.get(
                name
            )  # its own, or one that another process made: asking again would make a second
            and index.known(current.provider)
            and view.now >= max(current.retry_at, current.tried + (0.0 if current.retry_at else REPEAT_ASKING))
        ):
            pins = bound_of(view, index, whose(view, index, name), name).pins(view, (current.offering_id,))
            yield Launch(name, nodeset, (current.offering_id,), current.launch_id, gang(view, index, name), pins=pins)
        return
    if not index.name_is_free(name):
        return
    yield from _nowhere(node)
    waiters = waiting(view, index, name)
    job = waiters[0] if waiters else None
    offers = index.offers.of(nodeset, job)
    bound = bound_of(view, index, job, name)
    allowed = bound.allowed(view, offers.ready)
    if allowed:
        if bound.unknown or gathers(view, index, name):
            return
        passed = tuple(f"{c.offering_id} passed over, {c.kind.value}: {c.why}" for c in offers.passed)
        passed += tuple(f"{i} passed over, elsewhere: {_elsewhere(bound)}" for i in offers.ready if i not in allowed)
        yield Launch(name, nodeset, allowed, None, gang(view, index, name), passed, bound.pins(view, allowed))
        return
    if all(p in view.silent_providers for p in view.policy.nodesets[nodeset].providers):
        return
    if offers.next_at is not None and offers.next_at - view.now <= SHORT_WAIT:
        return
    text = describe(offers, view.now)
    what = NO_CAPACITY if offers.only_capacity else REFUSED
    if (
        offers.ready
    ):  # though not where the job's other machines are; they are given up, and the job is bought for as a whole
        text, what = f"no capacity where {_elsewhere(bound)}", NO_CAPACITY
    for job in waiters:
        yield WaitBegins(job.job_id)
        yield Report(job.job_id, f"nothing-to-buy:{job.restart_count}", f"{what.removeprefix(OURS)}: {name}: {text}")
    yield SetDown(name, f"{what}: {offers.passed[0].offering_id if offers.passed else nodeset}")


def _elsewhere(bound: Bound) -> str:
    return f"the job's other machines are ({bound.words()}), and placement.across_zones is false"


# --- slurmctld's requests ---------------------------------------------------------------------------------------------


def _requests(view: View, index: Index) -> Iterator[Action]:
    """A request is done when Slurm's state, which is what counts (R10), has been seen after it and no older intent is left unretired."""
    if view.nodes is None:
        return
    for request in view.requests:
        if request.kind == "resume":
            yield DropRequest(request.path)
            continue
        done = True
        for name in request.nodes:
            nodeset = view.policy.nodesets.get(view.policy.nodeset_of.get(name, ""))
            if nodeset is not None and not all(index.known(p) for p in nodeset.providers if p in view.clouds):
                done = False
            if any(
                i.state is not IntentState.RETIRED and i.created < request.time for i in index.intents.get(name, ())
            ):
                done = False
            if any(m.launch_id not in index.intent for _, m in index.machines.get(name, ())):
                done = False
        if done:
            yield DropRequest(request.path)
