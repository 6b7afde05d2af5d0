"""What the wrapper does about what happens: events in, actions out. No clock, no process and no store of its own.

The life of an attempt: STARTING (claim, restore), RUNNING, then either FINISHING (the program ended by itself: log ``end``) or
LEAVING (it was interrupted: log ``interrupted``, requeue), and OVER.

An interruption has two halves that come in any order: the checkpoint is settled (`desk`), and the verdict is known (`rules`). Then
the attempt leaves.
"""

from __future__ import annotations

import signal

from job_wrapper.errors import ExitCode
from job_wrapper.run import events as ev
from job_wrapper.run.asked import ASKED, SIGNAL, SUSPEND_WAIT
from job_wrapper.run.desk import AWAY, LATER_WAIT, QUIET_WAIT, RETRY_WAIT, Actions
from job_wrapper.run.finishing import Finishing
from job_wrapper.run.rules import (
    ASK_SLURM_AGAIN,
    STOP_WAIT,
    TAKES_AWAY,
    TAKES_NODE,
    VERDICT_WAIT,
    Finished,
    Interruption,
    Phase,
    Verdict,
    ended_code,
    judge_signal,
)


class Machine(Finishing):
    """The wrapper's state. ``on`` takes one event and the time (Unix seconds) and returns what to do, in order."""

    def on(self, event: ev.Event, now: float) -> Actions:
        """Take one event."""
        self._now = now
        if self.phase is Phase.OVER:
            return []
        if isinstance(event, ev.IsFenced):
            return self._fenced(event.epoch)
        actions: Actions = getattr(self, "_on_" + type(event).__name__.lower())(event, now)
        return actions + self._follow(now)

    def wake(self) -> float | None:
        """When to send the next ``Tick``; None: only events matter. Call after ``on``: what is due by then is done."""
        times: list[float | None] = [self._query_at]
        interruption, desk = self.interruption, self.desk
        if self.phase in (Phase.RUNNING, Phase.FINISHING):
            times.append(desk.retry_at)
        if self.phase is Phase.RUNNING:
            times += [desk.next_save, desk.ask_again, desk.quiet_at]
            if interruption is not None:
                times += [interruption.answer_by(desk.last_commit), interruption.leave_by()]
                times.append(interruption.arrived + VERDICT_WAIT)
        elif self.phase is Phase.LEAVING:
            times += [self._write_by, self._since + STOP_WAIT]
        elif self.phase is Phase.FINISHING:
            times += [self._since + VERDICT_WAIT, self._since + self.rules.patience, self._write_again, self._call_by]
            if interruption is not None:
                times.append(interruption.leave_by())
        return min((t for t in times if t is not None and t > self._now), default=None)

    # Events

    def _on_ready(self, event: ev.Ready, now: float) -> Actions:
        if self.phase is not Phase.STARTING:
            return []
        self.desk.has_parts = event.parts
        self.phase = Phase.RUNNING
        self.desk.pace.ready(now if event.since is None else event.since, event.limit, now)
        self.desk.next_save = now + self.desk.pace.seconds
        self.desk.quiet_at = None if self.desk.saves_files else now + QUIET_WAIT
        self.desk.committed_at = event.committed_at
        return [ev.Start()]

    def _on_giveup(self, event: ev.GiveUp, now: float) -> Actions:
        if self.phase not in (Phase.STARTING, Phase.RUNNING):
            return []
        if event.code == ExitCode.STORE_AWAY:
            return [ev.Say(event.text), *self._store_away(now)]
        if not event.write:
            return [ev.Say(event.text), *self._over(event.code)]
        self.phase, self._since, self.finished = Phase.FINISHING, now, Finished(event.code, event.reason)
        return [ev.Say(event.text), ev.Stop(), ev.WriteEnd(event.code, event.reason)]

    def _on_subscribed(self, event: ev.Subscribed, now: float) -> Actions:
        return self.desk.subscribed(event.client)

    def _on_left(self, event: ev.Left, now: float) -> Actions:
        return self.desk.left(event.client, now)

    def _on_acked(self, event: ev.Acked, now: float) -> Actions:
        return self.desk.acked(event, now)

    def _on_declined(self, event: ev.Declined, now: float) -> Actions:
        return self.desk.declined(event, now)

    def _on_staged(self, event: ev.Staged, now: float) -> Actions:
        return self.desk.staged(event)

    def _on_going(self, event: ev.Going, now: float) -> Actions:
        self.desk.going(event, now)
        return []

    def _on_commitasked(self, event: ev.CommitAsked, now: float) -> Actions:
        return self.desk.commit_asked(event, now)

    def _on_committed(self, event: ev.Committed, now: float) -> Actions:
        return self.desk.committed(event, now)

    def _on_commitfailed(self, event: ev.CommitFailed, now: float) -> Actions:
        interruption, keep_trying = self.interruption, False
        if interruption is not None and interruption.verdict is not Verdict.GO_ON:
            keep_trying = now + RETRY_WAIT < interruption.leave_by()
        elif self.phase is Phase.FINISHING:
            keep_trying = now + RETRY_WAIT < self._since + self.rules.patience
        actions = self.desk.commit_failed(event, keep_trying, now)
        ends_here = interruption is not None and interruption.ends_here
        if self._final_save and not event.nothing and not self.desk.busy and self.finished is None and not ends_here:
            if event.kind == AWAY:
                return [*actions, *self._store_away(now)]
            return actions + self._end(Finished(event.code, event.kind), now)
        return actions

    def _on_heard(self, event: ev.Heard, now: float) -> Actions:
        notice = event.notice
        what = f"{notice.provider} {notice.kind}"
        where = f" ({event.peer})" if event.peer else ""
        if notice.kind in TAKES_NODE:
            self._taken.add(event.peer)
        if self._deaf:
            if notice.kind in TAKES_AWAY:
                self._unheard[event.peer] = event
            return []
        if notice.kind not in TAKES_AWAY:
            said: Actions = [ev.Say(f"notice: {what}{where} {notice.text}".rstrip())]
            return said + (self.desk.ask(False, notice.deadline, what, now) if self.phase is Phase.RUNNING else [])
        self._standing.add(event.peer)
        old = self.interruption
        if old is not None and old.ends_here and not self._suspends:
            # Already leaving for another reason, or the same notice again: only the time may be shorter.
            if notice.deadline is not None:
                old.deadline = min(notice.deadline, old.deadline or notice.deadline)
            old.notice = old.notice or notice
            return []
        left = "" if notice.deadline is None else f", {max(0.0, notice.deadline - now):.0f} s left"
        new = Interruption(what, notice.arrived, self._verdict(), notice.deadline, notice, code=self._leave_code())
        return [ev.Say(f"notice: {what}{where}{left}"), *self._interrupt(new, now)]

    def _on_signalled(self, event: ev.Signalled, now: float) -> Actions:
        if self._deaf:
            return []
        old = self.interruption
        if old is not None and self._suspends and event.number == signal.SIGTERM:
            old.verdict, old.number, old.deadline = Verdict.UNKNOWN, event.number, None
            return self._query()
        if old is not None:
            # The same again, or Slurm's second word (TERM at the end of the grace): idempotent, but it may mean something else now.
            if not old.ends_here and self.rules.in_slurm:
                old.verdict, old.number = Verdict.UNKNOWN, event.number
                return self._query()
            return []
        name = signal.Signals(event.number).name
        new = Interruption(name, now, Verdict.UNKNOWN, number=event.number, code=128 + event.number)
        if not self.rules.in_slurm:
            users_own = event.number in (signal.SIGUSR1, signal.SIGUSR2)
            new.verdict = Verdict.GO_ON if users_own else Verdict.LEAVE
        asked = self._interrupt(new, now)
        query = self._query() if self.rules.in_slurm else []
        return [ev.Say(f"{name} received"), *asked, *query]

    def _on_asked(self, _: ev.Asked, now: float) -> Actions:
        old = self.interruption
        if self._deaf or not self.rules.commits or (old is not None and old.ends_here and not self._suspends):
            return []
        verdict = Verdict.UNKNOWN if self.rules.in_slurm else Verdict.GO_ON
        new = Interruption(ASKED, now, verdict, number=SIGNAL)
        said = ev.Say("a checkpoint is asked for")
        return [said, *self._interrupt(new, now), *(self._query() if self.rules.in_slurm else [])]

    def _on_jobseen(self, event: ev.JobSeen, now: float) -> Actions:
        self._querying = False
        view, interruption = event.view, self.interruption
        if interruption is None or (interruption.ends_here and not self._requeues):
            return []
        if view is None:
            self._query_at = now + ASK_SLURM_AGAIN
            return []
        if self._requeues:
            return self._requeue(view)
        if interruption.verdict is not Verdict.UNKNOWN:
            return []
        interruption.verdict, interruption.reason, deadline = judge_signal(view, self.rules)
        if interruption.verdict is Verdict.GO_ON and (ends := self._peers_failure(now)):
            return ends
        if interruption.verdict is Verdict.GO_ON and interruption.number == SIGNAL:
            interruption.reason = ASKED
            if not (view.held and view.batch and view.requeue):
                return []
            interruption.verdict, interruption.deadline = Verdict.SUSPEND, now + SUSPEND_WAIT
            return [ev.Say("the job is to be suspended: it is held after this checkpoint")]
        if interruption.verdict is Verdict.GO_ON:
            return [ev.Say("the job goes on after this checkpoint: Slurm neither preempts nor ends it")]
        if interruption.verdict is Verdict.REQUEUE:
            interruption.deadline, interruption.verdict = deadline, self._verdict()
            interruption.code = self._leave_code()
            said = "Slurm preempts this job"
        else:
            interruption.code = ended_code(view, self.rules, interruption.number)
            said = f"Slurm ends this attempt ({interruption.reason})"
            if event.lost:
                return self._broken(said, event.lost)
        asked: Actions = []
        if self.phase is Phase.RUNNING and not self.desk.settled:
            asked = self.desk.ask(True, interruption.deadline, interruption.reason, now)
        return [ev.Say(f"{said}: it ends after the checkpoint"), *asked]

    def _on_written(self, event: ev.Written, now: float) -> Actions:
        said: Actions = []
        if event.error and event.error != self._said:
            said, self._said = [ev.Say(f"could not write to the run's log: {event.error}")], event.error
        if self.phase is Phase.FINISHING and self.finished is not None:
            if event.again and now + LATER_WAIT < self._since + self.rules.patience:
                self._write_again = now + LATER_WAIT
                return said
            return said + self._over(self.finished.code)
        if self.phase is Phase.LEAVING:
            self._written, self._query_at = True, None
        return said

    def _on_exited(self, event: ev.Exited, now: float) -> Actions:
        self._exit = event
        self.desk.program_gone()
        if self.phase is Phase.RUNNING:
            self.phase, self._since = Phase.FINISHING, now
        return []

    def _on_tick(self, _: ev.Tick, now: float) -> Actions:
        return []

    # What follows from the state, after every event

    def _follow(self, now: float) -> Actions:
        actions: Actions = []
        if self._unheard and not self._deaf:
            # The last save of a finished program has failed, and is tried again: it does not hold up the job beyond a notice.
            unheard, self._unheard = self._unheard, {}
            for event in unheard.values():
                actions += self._on_heard(event, now)
        if self._query_at is not None and now >= self._query_at:
            self._query_at = None
            actions += self._query()
        if self.phase is Phase.STARTING:
            actions += self._interrupted_early(now)
        if self.phase is Phase.RUNNING:
            actions += self._timers(now)
            actions += self.desk.quiet_due(now)
            actions += self._interrupted(now)
        if self.phase is Phase.FINISHING:
            actions += self._finish(now)
        if self.phase in (Phase.RUNNING, Phase.FINISHING):
            actions += self.desk.next(now)
        if self.phase is Phase.LEAVING:
            actions += self._next_leaving(now)
        return actions

    def _interrupted_early(self, now: float) -> Actions:
        """Before the program has started there is nothing to save."""
        interruption = self.interruption
        if interruption is not None and interruption.verdict is Verdict.GO_ON:
            self.interruption = None
            if interruption.number == SIGNAL:
                return [ev.Tell("the program has not started yet: its checkpoint is being restored")]
        return self._leave(now) if interruption is not None and interruption.ends_here else []

    def _timers(self, now: float) -> Actions:
        desk, interruption = self.desk, self.interruption
        if desk.ask_again is not None and now >= desk.ask_again:
            if interruption is None:
                return desk.ask(False, None, "interval", now)
            if interruption.verdict is Verdict.GO_ON or self._suspends:  # whoever asked is told that it could not
                desk.ask_again, desk.settled = None, True
            else:
                return desk.ask(True, interruption.deadline, interruption.reason, now)
        return desk.interval_due(now)

    def _interrupted(self, now: float) -> Actions:
        """Whether the interruption leads anywhere now, and what those who wait for an answer to a commit are told."""
        interruption, desk = self.interruption, self.desk
        if interruption is None:
            return desk.release(False)
        if interruption.verdict is Verdict.UNKNOWN:
            if now < interruption.arrived + VERDICT_WAIT:
                return desk.release(False, hold_urgent=True)
            if not desk.holds:
                return []
            # Losing the steps since this commit is better than ending a job that goes on.
            desk.settled = False
            return [ev.Say("Slurm does not say whether this job ends: going on"), *desk.release(False)]
        if interruption.verdict is Verdict.GO_ON:
            told = self._without_checkpoint(interruption) if desk.settled else []
            if desk.settled:
                self.interruption = None
            return [*told, *desk.release(False)]
        if not desk.settled:
            self._out_of_time(interruption, now)
        if not desk.settled:
            return desk.release(False)
        if self._suspends and (told := self._without_checkpoint(interruption)):
            # Whoever marked the job may be gone (`suspend --no-wait`), and the mark would hold it at its next requeue.
            self.interruption = None
            return [*told, ev.Unhold(), *desk.release(False)]
        return [*desk.release(True), *self._leave(now)]

    def _without_checkpoint(self, interruption: Interruption) -> Actions:
        """What a user who asked for one is told where there is none. Counters that are no further than the last commit need none."""
        desk = self.desk
        nothing_new = self.rules.counters and desk.unchanged and desk.committed_at is not None
        if interruption.number != SIGNAL or desk.urgent_entry is not None:
            return []
        if self._suspends and nothing_new:
            return []
        why = desk.refusal or f"the program has not answered within {SUSPEND_WAIT:.0f} s"
        return [ev.Say(f"asked for a checkpoint in vain: {why}"), ev.Tell(why)]

    def _out_of_time(self, interruption: Interruption, now: float) -> None:
        desk = self.desk
        if now >= interruption.leave_by():
            desk.settled = True
        elif now >= interruption.answer_by(desk.last_commit) and not desk.busy and desk.saves_files:
            # The program does not answer: what its state directories hold is better than nothing.
            desk.save_files(interruption.reason, True, now)

    # Small parts

    @property
    def _deaf(self) -> bool:
        """It is settled how this attempt ends; but a finished program's last files may still wait for a store that is away."""
        waits = self.phase is Phase.FINISHING and self.finished is None and (self.desk.retrying or self._calling)
        return self.phase in (Phase.FINISHING, Phase.LEAVING) and not waits

    def _interrupt(self, interruption: Interruption, now: float) -> Actions:
        self.interruption = interruption
        self.desk.settled, self.desk.urgent_entry, self.desk.refusal = False, None, ""
        self.desk.unchanged = False
        if self.phase is not Phase.RUNNING:
            return []
        return self.desk.ask(True, interruption.deadline, interruption.reason, now)
