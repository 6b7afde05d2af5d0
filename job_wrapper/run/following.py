"""What the wrapper of a rank other than 0 does about what happens. Pure, like `machine`, which is rank 0's.

Rank 0's wrapper saves, commits and requeues for all. So this one passes on what it hears, keeps its program alive while rank 0 saves, and
stays, whatever its program's exit code, until it is known what rank 0 makes of it: a task that ends with a failure may take the whole
step with it (``srun --kill-on-bad-exit``), rank 0's commit included.

Only when rank 0 does nothing until shortly before the deadline, because its node is gone too, does this one requeue the job.
"""

from __future__ import annotations

import signal

from job_wrapper.errors import ExitCode
from job_wrapper.run import events as ev
from job_wrapper.run.desk import Actions, failed
from job_wrapper.run.leaving import Leaving
from job_wrapper.run.rules import (
    ASK_SLURM_AGAIN,
    KILLED,
    STOP_WAIT,
    TAKES_AWAY,
    VERDICT_WAIT,
    Finished,
    Interruption,
    Phase,
    Rules,
    Verdict,
    ended_code,
    judge_exit,
    judge_signal,
)

LOOK_PAUSE = 1.0
"""Seconds between looks at rank 0's attempt, once it matters."""
HOLD = 150.0
"""Seconds that a failed program's exit code is held back on one of several nodes: rank 0 calls the nodes within that, or is gone."""
HOLD_ALONE = 5.0
"""The same where all ranks are on one node."""
BACKSTOP = 3.0
"""Seconds after the time by which rank 0 should have left, in which this wrapper acts itself."""


class Following(Leaving):
    """The state of a follower. ``on`` and ``wake`` as of `Machine`."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._head = ev.HeadSeen()
        self._looking = False
        self._look_at: float | None = None
        self._stopped: float | None = None
        """When its program was told to end."""
        self._told_end = False

    def on(self, event: ev.Event, now: float) -> Actions:
        """Take one event."""
        self._now = now
        if self.phase is Phase.OVER:
            return []
        handler = getattr(self, "_on_" + type(event).__name__.lower(), None)
        actions: Actions = handler(event, now) if handler is not None else []
        return actions + self._follow(now)

    def wake(self) -> float | None:
        """When to send the next ``Tick``; None: only events matter."""
        times: list[float | None] = [self._query_at, self._look_at]
        interruption = self.interruption
        if self.phase is Phase.LEAVING:
            times += [self._write_by, self._since + STOP_WAIT]
        elif interruption is not None:
            times += [_backstop(interruption), None if self._stopped is None else self._stopped + STOP_WAIT]
        if self.phase is Phase.FINISHING:
            times += [self._since + VERDICT_WAIT, self._since + self._hold]
        return min((t for t in times if t is not None and t > self._now), default=None)

    # Events

    def _on_isfenced(self, event: ev.IsFenced, now: float) -> Actions:
        return self._fenced(event.epoch)

    def _on_ready(self, event: ev.Ready, now: float) -> Actions:
        if self.phase is not Phase.STARTING:
            return []
        self.phase = Phase.RUNNING
        return [ev.Start()]

    def _on_giveup(self, event: ev.GiveUp, now: float) -> Actions:
        if self.phase not in (Phase.STARTING, Phase.RUNNING):
            return []
        if event.code == ExitCode.STORE_AWAY:
            return [ev.Say(event.text), *self._store_away(now)]
        return [ev.Say(event.text), *self._over(event.code)]

    def _on_acked(self, event: ev.Acked, now: float) -> Actions:
        return [failed(event.client, event.seq, "only the wrapper of rank 0 commits")]

    def _on_commitasked(self, event: ev.CommitAsked, now: float) -> Actions:
        return [failed(event.client, event.seq, "only the wrapper of rank 0 commits")]

    def _on_heard(self, event: ev.Heard, now: float) -> Actions:
        if self.phase is Phase.LEAVING:
            return []
        notice, old = event.notice, self.interruption
        what = f"{notice.provider} {notice.kind}"
        told: Actions = [ev.TellNotice(notice)] if self.rules.peers else []
        if notice.kind not in TAKES_AWAY:
            return told
        if old is not None and old.ends_here:
            if notice.deadline is not None:
                old.deadline = min(notice.deadline, old.deadline or notice.deadline)
            return told
        left = "" if notice.deadline is None else f", {max(0.0, notice.deadline - now):.0f} s left"
        self.interruption = Interruption(
            what, notice.arrived, self._verdict(), notice.deadline, notice, code=self._leave_code()
        )
        self._look_at = now + LOOK_PAUSE
        return [ev.Say(f"notice: {what}{left}; rank 0 saves"), *told]

    def _on_withdrawn(self, _: ev.Withdrawn, now: float) -> Actions:
        told: Actions = [ev.TellNotice(None)] if self.rules.peers else []
        interruption = self.interruption
        if self.phase is Phase.LEAVING or interruption is None or interruption.notice is None:
            return told
        self.interruption = None
        return [ev.Say("the notice was withdrawn: going on"), *told]

    def _on_signalled(self, event: ev.Signalled, now: float) -> Actions:
        if self.phase is Phase.LEAVING:
            return []
        if self.interruption is None:
            code = 128 + event.number
            self.interruption = Interruption("signal", now, Verdict.UNKNOWN, number=event.number, code=code)
        return self._query()

    def _on_jobseen(self, event: ev.JobSeen, now: float) -> Actions:
        self._querying = False
        view, interruption = event.view, self.interruption
        if interruption is None or (self.phase is Phase.LEAVING and not self._requeues):
            return []
        if view is None:
            self._query_at = now + ASK_SLURM_AGAIN
            return []
        if self._requeues:
            return self._requeue(view)
        verdict, reason, deadline = judge_signal(view, self.rules)
        if verdict is Verdict.LEAVE:
            interruption.verdict, interruption.reason = verdict, reason
            interruption.code = ended_code(view, self.rules, interruption.number)
            self._look_at = now
        elif interruption.verdict is Verdict.UNKNOWN:
            interruption.verdict, interruption.reason = verdict, reason
            if verdict is Verdict.REQUEUE:
                interruption.deadline, interruption.verdict = deadline, self._verdict()
                interruption.code = self._leave_code()
                self._look_at = now + LOOK_PAUSE
        return []

    def _on_headseen(self, event: ev.HeadSeen, now: float) -> Actions:
        self._looking, self._head = False, event
        return []

    def _on_written(self, _: ev.Written, now: float) -> Actions:
        if self.phase is Phase.LEAVING:
            self._written, self._query_at = True, None
        return []

    def _on_exited(self, event: ev.Exited, now: float) -> Actions:
        self._exit = event
        if self.phase is Phase.RUNNING:
            self.phase, self._since = Phase.FINISHING, now
        return []

    # What follows from the state, after every event

    def _follow(self, now: float) -> Actions:
        actions: Actions = []
        if self.phase is Phase.OVER:
            return actions
        if self._query_at is not None and now >= self._query_at:
            self._query_at = None
            actions += self._query()
        if self.phase is Phase.LEAVING:
            return actions + self._next_leaving(now)
        interruption = self.interruption
        if interruption is not None and interruption.verdict is Verdict.GO_ON:
            self.interruption = interruption = None
        if interruption is not None and interruption.ends_here:
            return actions + self._wait_for_rank_0(interruption, now)
        if self.phase is Phase.FINISHING:
            return actions + self._ended(now)
        return actions

    def _wait_for_rank_0(self, interruption: Interruption, now: float) -> Actions:
        """The attempt ends, by rank 0's doing or Slurm's."""
        leaves = interruption.verdict is Verdict.LEAVE
        nobody_requeues = leaves and interruption.code == ExitCode.PREEMPTED  # --on-interruption fail
        if leaves and not nobody_requeues and (self._head.leaving or self.phase is not Phase.RUNNING):
            return self._over(interruption.code)
        if nobody_requeues and self._head.ended and self._program_over(now):
            # Not before: an exit code of its own may take the step with it, and rank 0's commit.
            ended = None if self._exit is None else judge_exit(self._exit.status, self._exit.oom)
            return self._over(0 if ended is not None and ended.code == 0 else interruption.code)
        if now >= _backstop(interruption):
            return self._leave(now)
        if self._head.leaving and self._stopped is None:
            # What rank 0 could save is saved. It requeues now, and Slurm then ends this task.
            self._stopped = now
            return [ev.Stop()]
        return [] if self._head.leaving or self.phase is Phase.STARTING else self._look(now)

    def _ended(self, now: float) -> Actions:
        """The program is gone, and nothing is known that would have ended it."""
        assert self._exit is not None  # noqa: S101 - it makes the phase
        finished = judge_exit(self._exit.status, self._exit.oom)
        if self.interruption is not None and now < self._since + VERDICT_WAIT:
            return []  # Slurm is asked what a signal meant
        if finished is None and not self.rules.peers:
            self.interruption = Interruption(KILLED, now, self._verdict(), code=128 + signal.SIGKILL)
            return [ev.Say("the program was killed from outside (SIGKILL)"), *self._leave(now)]
        end = finished or Finished(128 + signal.SIGKILL, KILLED)
        if end.code == 0 and self.rules.peers:
            return [ev.TellEnded(0, end.reason), *self._over(0)]  # else it would be a node that does not answer
        if end.code == 0 or self._head.ended or self._head.released or now >= self._since + self._hold:
            return self._over(end.code)
        if self._head.leaving:
            self.interruption = Interruption(end.reason, now, self._verdict(), code=self._leave_code())
            return []
        told: Actions = []
        if self.rules.peers and not self._told_end:
            self._told_end = True
            told = [ev.Say(f"the program ended with {end.code} ({end.reason})"), ev.TellEnded(end.code, end.reason)]
        return told + self._look(now)

    # Small parts

    def _program_over(self, now: float) -> bool:
        return self._exit is not None or (self._stopped is not None and now >= self._stopped + STOP_WAIT)

    @property
    def _hold(self) -> float:
        return HOLD if self.rules.peers else HOLD_ALONE

    def _look(self, now: float) -> Actions:
        if self._looking or (self._look_at is not None and now < self._look_at):
            return []
        self._looking, self._look_at = True, now + LOOK_PAUSE
        return [ev.LookAtHead()]


def _backstop(interruption: Interruption) -> float:
    """When rank 0 should be gone, and a little later; but still before the deadline."""
    by = interruption.leave_by()
    return by + (
        BACKSTOP if interruption.deadline is None else min(BACKSTOP, max(0.5, (interruption.deadline - by) / 2))
    )
