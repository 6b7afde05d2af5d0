"""Acting: each action in its own try, so that one node's or one job's fault stays its own (cases 1).

What is to survive a crash is written down before the outside is told. Actions on many nodes go out in one call. An action that was just
done, or refused, is damped (``damp``): deciding asks for it in every pass until it shows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from job_wrapper.comments import comment
from job_wrapper.run.asked import SIGNAL
from slurm_plugin import requeue
from slurm_plugin.actions import (
    OURS,
    Action,
    CancelJob,
    Drain,
    DropRequest,
    EndJob,
    HoldJob,
    KeepIdle,
    Launch,
    PowerDown,
    PowerUp,
    ReleaseJob,
    Report,
    RequeueJob,
    Resume,
    SetAddress,
    SetDown,
    StartNow,
    SuspendJob,
    Terminate,
    Undrain,
)
from slurm_plugin.cloud import launch_ids
from slurm_plugin.errors import CloudUnavailable, SlurmRefused, SlurmUnavailable
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.comments import Comments
from slurm_plugin.manager.damp import Damper
from slurm_plugin.manager.launch import Launcher
from slurm_plugin.manager.many import shared_reasons
from slurm_plugin.manager.noting import NOTED, write_down
from slurm_plugin.manager.say import Once, log
from slurm_plugin.reconcile.index import ACTIVE
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.orders import NODES_A_CALL
from slurm_plugin.slurm.records import Job

UNDAMPED = (*NOTED, DropRequest, Launch)
"""These change the ledger (or a file), which the very next look shows; a launch's repetition is bounded by its intent."""
_Some = TypeVar("_Some", bound=Action)


class Applier:
    """Carries out one pass's actions."""

    def __init__(
        self,
        client: SlurmClient,
        ledger: Ledger,
        launcher: Launcher,
        once: Once,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.client, self.ledger, self.launcher, self.once, self.clock = client, ledger, launcher, once, clock
        self.damper = Damper()
        self.comments = Comments(client)
        self._jobs: dict[int, Job] = {}
        """Of the present pass, by id."""

    def apply(self, actions: Sequence[Action], view: View) -> bool:
        """In the order given. True if anything was done. Never raises for what the outside does."""
        self.damper.forget_old(view.now)
        due = [a for a in actions if isinstance(a, UNDAMPED) or self.damper.due(a, view.now)]
        self._jobs = {job.job_id: job for job in view.jobs or ()}
        jobs_on: dict[str, list[Job]] = defaultdict(list)
        for job in view.jobs or ():
            if job.has(*ACTIVE):
                for node in job.nodes:
                    jobs_on[node].append(job)
        for _, group in groupby(due, key=lambda a: a.order):
            self._group(list(group), view, jobs_on)
        for action in due:
            if not isinstance(action, UNDAMPED):
                self.damper.done(action, view.now)
        try:
            self.comments.write()
        except SlurmUnavailable as error:
            self._silent(error)
        return bool(due)

    def _group(self, actions: list[Action], view: View, jobs_on: dict[str, list[Job]]) -> None:
        self._ledger_only(actions)
        self._addresses(_of(actions, SetAddress))
        self._downs(_of(actions, SetDown), view, jobs_on)
        for action in actions:
            if isinstance(action, RequeueJob | ReleaseJob):
                self._job(action)
            elif isinstance(action, CancelJob):
                self._try(partial(self._cancel, action), action)
            elif isinstance(action, SuspendJob | HoldJob | EndJob):
                self._try(partial(self._stop, action), action)
            elif isinstance(action, StartNow):
                self._try(partial(self._start_now, action), action)
            elif isinstance(action, Report):
                self._try(partial(self._report, action), action)
        self._nodes(_of(actions, Drain), "drain", lambda a: a.reason)
        self._power_ups(_of(actions, PowerUp))
        self._nodes(_of(actions, KeepIdle), "idle")
        self._terminate(_of(actions, Terminate))
        self._launch(_of(actions, Launch), view, jobs_on)
        downs = _of(actions, PowerDown)
        self._nodes([a for a in downs if not a.force], "power_down")
        self._nodes([a for a in downs if a.force], "power_down_force")
        self._nodes(_of(actions, Resume), "resume")
        self._nodes(_of(actions, Undrain), "undrain")

    # --- ledger -------------------------------------------------------------------------------------------------------

    def _ledger_only(self, actions: list[Action]) -> None:
        def work() -> None:
            with self.ledger.batch():
                for action in noted:
                    write_down(action, self.ledger, self.launcher.policy.offerings, self.clock())

        noted = [action for action in actions if isinstance(action, NOTED)]
        if noted:
            self._try(work, noted[0])
        for action in _of(actions, DropRequest):
            self._try(partial(action.path.unlink, missing_ok=True), action)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _addresses(self, actions: list[SetAddress]) -> None:
        """Slurm wants as many addresses as nodes."""
        for address, group in _by(actions, lambda a: a.address).items():
            for piece in launch_ids.chunks([a.node for a in group], NODES_A_CALL):
                call = partial(self.client.update_nodes, piece, address=",".join([address] * len(piece)))
                self._try(call, group[0], piece)

    def _downs(self, actions: list[SetDown], view: View, jobs_on: dict[str, list[Job]]) -> None:
        for action in actions:
            log.warning("node set down", node=action.node, reason=action.reason)
        reasons = shared_reasons({a.node: a.reason for a in actions}, view.intents)
        done = self._nodes(actions, "down", lambda a: reasons[a.node])
        for action in done:
            for job in jobs_on.get(action.node, ()):
                text = action.tell or action.reason.removeprefix(OURS)
                self._try(partial(self._tell, job, text), action)

    def _nodes(
        self,
        actions: Iterable[_Some],
        state: str,
        reason: Callable[[_Some], str] | None = None,
    ) -> list[_Some]:
        """One call for all that share a reason. Returns those that Slurm did not refuse."""
        done: list[_Some] = []
        for text, group in _by(actions, reason or (lambda _: "")).items():
            names = [_node(a) for a in group]
            call = partial(self.client.update_nodes, names, state=state, reason=text or None)
            if self._try(call, group[0], names):
                done += group
                for action in group:
                    if isinstance(action, PowerUp | KeepIdle):
                        continue  # a replacement's opening is the event
                    why = text.removeprefix(OURS) or str(getattr(action, "why", "") or getattr(action, "because", ""))
                    self._try(partial(self.ledger.event, state, why, node=_node(action)), action)
        return done

    def _power_ups(self, actions: list[PowerUp]) -> None:
        with_row = [
            a for a in actions if self._try(partial(self.ledger.open_replacement, a.job_id, a.node, a.because), a)
        ]
        for action in self._nodes(with_row, "power_up"):
            log.info("replacement prepared", node=action.node, job=action.name_id, because=action.because)
            text = f"{action.because}; replacement {action.node} prepared"
            job = self._jobs.get(action.job_id)
            if job is not None:
                self._try(partial(self._tell, job, text, event=False), action)

    # --- machines -----------------------------------------------------------------------------------------------------

    def _terminate(self, actions: list[Terminate]) -> None:
        by_provider: dict[str, list[Terminate]] = defaultdict(list)
        for action in actions:
            by_provider[action.provider].append(action)
        for provider, group in by_provider.items():

            def work(provider: str = provider, group: list[Terminate] = group) -> None:
                with self.ledger.batch():
                    for a in group:
                        if self.ledger.retire(a.launch_id, a.why, blame=a.blame):
                            log.info("ending", node=a.node, instance=a.instance_id, launch_id=a.launch_id, why=a.why)
                lane = self.launcher.lanes[provider]
                lane.call(lambda: lane.provider.terminate([a.instance_id for a in group]))

            self._try(work, group[0])

    def _launch(self, actions: list[Launch], view: View, jobs_on: dict[str, list[Job]]) -> None:
        if not actions:
            return
        whose = {r.node: r.job_id for r in view.replacements}
        whose |= {a.node: jobs_on[a.node][0].job_id for a in actions if jobs_on.get(a.node)}

        def work() -> None:
            for action, refusal in self.launcher.launch(actions, self.clock, whose):
                for job in jobs_on.get(action.node, ()):
                    text = f"{action.node} can't be made ({refusal.kind.value}): {refusal.code}: {refusal.text}"
                    self._try(partial(self._tell, job, text), action)

        self._try(work, actions[0])

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _job(self, action: RequeueJob | ReleaseJob) -> None:
        def work() -> None:
            if action.counter:
                self.ledger.count(f"job:{action.job_id}", action.counter)
            if isinstance(action, RequeueJob):
                self.client.requeue(action.name_id, hold=action.hold)
                what = "requeued and held" if action.hold else "requeued"
            else:
                self.client.release(action.name_id)
                what = "released"
            log.info(what, job=action.name_id, attempt=action.restart_count, why=action.why)
            self.ledger.event(what, action.why, job=action.job_id)
            job = self._jobs.get(action.job_id)
            if job is not None:
                self._tell(job, f"{what}: {action.why}", event=False)

        self._try(work, action)

    def _cancel(self, action: CancelJob) -> None:
        text = f"{action.reason}: {action.text}"
        job = self._jobs.get(action.job_id)
        if job is not None:
            # First: nobody can tell a job that is gone. The accounting may not keep the comment; it always keeps the other.
            self._try(partial(self._tell, job, text, event=False, now=True), action)
            told = comment(job.admin_comment, text)
            self._try(partial(self.client.set_admin_comment, job.name_id, told), action)
        self.client.cancel(action.name_id)
        log.warning("cancelled", job=action.name_id, reason=action.reason, why=action.text)
        self.ledger.event("cancelled", text, job=action.job_id)

    def _stop(self, action: SuspendJob | HoldJob | EndJob) -> None:
        job, refusal = self._jobs.get(action.job_id), None
        if isinstance(action, SuspendJob):
            try:
                self.client.hold(action.name_id, releasable=True)
                self.client.signal(action.name_id, SIGNAL.name.removeprefix("SIG"))
            except SlurmRefused as error:
                refusal = error  # one that can't be asked has no longer grace than one that does not hear
            # Last: should this be cut off, the job is asked again, which harms nothing.
            if not self.ledger.first(f"job:{action.job_id}", action.counter) and not refusal:
                return
            if refusal is not None:
                raise refusal
        log.warning(action.why, job=action.name_id, attempt=action.restart_count)
        if job is not None:
            self._try(partial(self._tell, job, action.why, now=isinstance(action, EndJob)), action)
        if isinstance(action, EndJob):
            self.client.end(action.name_id)
        elif isinstance(action, HoldJob):
            self.client.hold(action.name_id, releasable=True)

    def _start_now(self, action: StartNow) -> None:
        self.client.start_now(action.name_id)
        log.info("begin time cleared", job=action.name_id, attempt=action.restart_count, nodes=action.nodes)
        self.ledger.event("start-now", f"{', '.join(action.nodes)} ready", job=action.job_id)

    def _report(self, action: Report) -> None:
        self.ledger.count(f"job:{action.job_id}", f"said:{action.key}")
        job = self._jobs.get(action.job_id)
        log.warning(action.text, job=job.name_id if job else str(action.job_id))
        if job is not None and requeue.may_need_help(job):
            # Slurm takes no comment of a job that has ended.
            self.ledger.event("told", action.text, job=job.job_id)
        elif job is not None:
            self._tell(job, action.text)

    def _tell(self, job: Job, text: str, *, event: bool = True, now: bool = False) -> None:
        if event:
            self.ledger.event("told", text, job=job.job_id)
        if now:
            self.comments.tell_now(job, text)
        else:
            self.comments.tell(job, text)

    # --- trying -------------------------------------------------------------------------------------------------------

    def _try(self, work: Callable[[], object], action: Action, many: Sequence[str] = ()) -> bool:
        keys = {k: v for k in ("node", "name_id", "launch_id") if (v := getattr(action, k, None))}
        if len(many) > 1:
            keys["node"] = ",".join(many)
        what = type(action).__name__
        try:
            work()
            return True
        except SlurmUnavailable as error:
            self._silent(error)
        except CloudUnavailable as error:
            self.once.fault(f"{what} at {getattr(action, 'provider', 'a cloud')}", str(error))
        except SlurmRefused as error:
            log.warning(f"{what}: Slurm refused", error=str(error), **keys)
        except Exception as error:
            log.error(f"{what} failed", error=str(error) or repr(error), exc_info=True, **keys)
        return False

    def _silent(self, error: SlurmUnavailable) -> None:
        self.once.fault("Slurm", f"does not answer, so nothing is concluded about nodes and jobs: {error}")


def _of(actions: list[Action], kind: type[_Some]) -> list[_Some]:
    return [a for a in actions if isinstance(a, kind)]


def _by(actions: Iterable[_Some], key: Callable[[_Some], str]) -> dict[str, list[_Some]]:
    groups: dict[str, list[_Some]] = defaultdict(list)
    for action in actions:
        groups[key(action)].append(action)
    return groups


def _node(action: Action) -> str:
    return str(getattr(action, "node", ""))
