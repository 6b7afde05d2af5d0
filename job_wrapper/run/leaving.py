"""How an attempt leaves: ``interrupted`` into the log, then the requeue. The half of `machine` that knows nothing of checkpoints.

The wrapper stays alive until Slurm has said yes: exiting earlier would end the job instead. A job that is already in Slurm's hands, or on
its way to another attempt, is never touched.
"""

from __future__ import annotations

import signal

from job_wrapper.errors import ExitCode
from job_wrapper.run import events as ev
from job_wrapper.run.desk import AWAY, Actions, Desk
from job_wrapper.run.rules import (
    ASK_SLURM_AGAIN,
    STOP_WAIT,
    STRANDED_WAIT,
    TAKES_NODE,
    WRITE_WAIT,
    Finished,
    Interruption,
    Phase,
    Rules,
    Verdict,
    ended_code,
    judge_fail,
)
from job_wrapper.slurm_job import JobView


class Leaving:
    """What `Machine` is built on: its state, and everything from the decision to leave to the exit."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.desk = Desk(rules)
        self.phase = Phase.STARTING
        self.interruption: Interruption | None = None
        self.finished: Finished | None = None
        self._now = 0.0
        self._exit: ev.Exited | None = None
        self._final_save = False
        self._query_at: float | None = None
        self._querying = False
        self._written = False
        self._write_by = 0.0
        self._write_again: float | None = None
        self._requeueing = False
        self._holds = False
        """The requeue that was asked for keeps the job held."""
        self._since = 0.0
        self._said = ""

    def _fenced(self, epoch: int) -> Actions:
        return [
            ev.Say(f"fenced: a newer attempt (epoch {epoch}) holds this run; the program here is stopped"),
            ev.Stop(fenced=epoch),
            *self._over(ExitCode.FENCED),
        ]

    def _store_away(self, now: float) -> Actions:
        """An outage that lasts ends no run: it is brought back, bounded as every recovery is (`bounds`)."""
        self.interruption = Interruption(AWAY, now, self._verdict(), code=int(ExitCode.STORE_AWAY))
        text = "the store stays away: this attempt ends, and the run goes on from its last commit"
        leaving = self._leave(now)
        self._write_by = now + 1.0  # it is most likely still away
        return [ev.Say(text), *leaving]

    def _leave(self, now: float) -> Actions:
        interruption = self.interruption
        if interruption is None:
            return []
        self.phase, self._since = Phase.LEAVING, now
        self._write_by = now + WRITE_WAIT
        if interruption.deadline is not None:
            self._write_by = min(self._write_by, max(now + 1.0, interruption.leave_by()))
        self._query_at = None
        if interruption.verdict is Verdict.SUSPEND:
            return [ev.WriteSuspended(interruption.arrived), ev.Stop()]
        failed = judge_fail(interruption, self.rules)
        if failed is not None:
            interruption.code = failed.code
            said = ev.Say(
                f"{failed.reason}: this job ends, and nothing brings it back (--on-interruption fail, or srun or salloc); its last commit stands"
            )
            return [said, ev.WriteEnd(failed.code, failed.reason, interruption.arrived, interruption.notice), ev.Stop()]
        return [ev.WriteInterrupted(interruption.reason, interruption.arrived, interruption.notice), ev.Stop()]

    def _next_leaving(self, now: float) -> Actions:
        interruption = self.interruption
        if interruption is None or (not self._written and now < self._write_by):
            return []
        if self._requeues:
            if self._requeueing or self._query_at is not None:
                return []
            return self._query()
        if self._exit is None and now < self._since + STOP_WAIT:
            return []
        return self._over(interruption.code)

    def _requeue(self, view: JobView) -> Actions:
        """Slurm has just shown the job. One that is already on its way to another attempt, or in its hands, is never touched."""
        if self._requeueing:
            return []
        if view.running and view.restart_count == self.rules.restart_count:
            self._requeueing = True
            away = self.interruption is not None and self.interruption.reason == AWAY
            self._holds = self._suspends and view.held  # its user may have released it meanwhile
            return [ev.Requeue(hold=self._holds, away=away, leaves=self._leaves())]
        return [
            ev.Say(f"Slurm already ends this attempt ({view.state.lower()})"),
            *self._over(ended_code(view, self.rules, None)),
        ]

    def _on_requeued(self, event: ev.Requeued, now: float) -> Actions:
        text = event.text or "requeued: Slurm starts this job again"
        if self._holds:
            text = "suspended: the job is held until `spotburst resume` (or scontrol release)"
        return [ev.Say(text), *self._over(ExitCode.REQUEUED)]

    def _on_requeuerefused(self, event: ev.RequeueRefused, now: float) -> Actions:
        self._requeueing = False
        interruption = self.interruption
        if interruption is None or self.phase is not Phase.LEAVING:
            return []
        if now >= (interruption.deadline or interruption.arrived + 300.0) + STRANDED_WAIT:
            text = f"Slurm does not requeue this job: {event.text}"
            return [ev.Say(text), *self._over(ExitCode.NOT_REQUEUEABLE)]
        # Staying alive is the point: an exit would end the job; a node that goes away has it requeued (DESIGN §5.3).
        # The first time look at once: Slurm's own SIGTERM may have ended the scontrol that was through already.
        self._query_at = now + (ASK_SLURM_AGAIN if self._said else 0.0)
        said: Actions = [] if event.text == self._said else [ev.Say(f"requeue refused, trying again: {event.text}")]
        self._said = event.text
        return said

    def _leaves(self) -> tuple[str, ...]:
        """Nodes that their cloud takes away, as far as this wrapper has heard; "" is this one."""
        notice = self.interruption.notice if self.interruption is not None else None
        return ("",) if notice is not None and notice.kind in TAKES_NODE else ()

    @property
    def _requeues(self) -> bool:
        interruption = self.interruption
        back = (Verdict.REQUEUE, Verdict.SUSPEND)
        return self.phase is Phase.LEAVING and interruption is not None and interruption.verdict in back

    @property
    def _suspends(self) -> bool:
        return self.interruption is not None and self.interruption.verdict is Verdict.SUSPEND

    def _over(self, code: int) -> Actions:
        self.phase = Phase.OVER
        return [ev.Exit(int(code))]

    def _verdict(self) -> Verdict:
        return Verdict.REQUEUE if self.rules.in_slurm and self.rules.requeue else Verdict.LEAVE

    def _leave_code(self) -> int:
        return int(ExitCode.PREEMPTED) if self.rules.in_slurm else 128 + signal.SIGTERM

    def _query(self) -> Actions:
        if self._querying:
            return []
        self._querying = True
        return [ev.QueryJob()]
