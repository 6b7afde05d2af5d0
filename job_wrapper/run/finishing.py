"""What the end of the program means: the run's end, or that the run goes on elsewhere.

`Machine` is built on this.
"""

from __future__ import annotations

import signal

from job_wrapper.run import events as ev
from job_wrapper.run.desk import AWAY, Actions
from job_wrapper.run.peers import Peers
from job_wrapper.run.rules import FINISHED, KILLED, VERDICT_WAIT, Finished, Interruption, Verdict, judge_exit


class Finishing(Peers):
    """See above."""

    def _finish(self, now: float) -> Actions:
        """The program is gone: first what it committed, then what its end means."""
        desk, interruption = self.desk, self.interruption
        if self.finished is not None:
            if self._write_again is not None and now >= self._write_again:
                self._write_again = None
                return [ev.WriteEnd(self.finished.code, self.finished.reason)]
            if now < self._since + self.rules.patience:
                return []
            return [ev.Say("the run's end could not be put into its log"), *self._over(self.finished.code)]
        if self._exit is None:
            return []
        if desk.busy:
            # A store that is away meanwhile does not keep a job on capacity that goes away.
            late = interruption is not None and interruption.ends_here and now >= interruption.leave_by()
            return self._leave(now) if late else []
        finished = judge_exit(self._exit.status, self._exit.oom)
        if (called := self._call_first(finished, now)) is not None:
            return called
        if finished is None and self.rules.counters and self.rules.commits and not self._final_save:
            self._final_save = True
            desk.save_files("killed", True, now)
            return []
        if finished is not None and finished.reason == AWAY and desk.known:
            # The program waited for the store in vain: nobody's fault, and the run can go on later.
            if interruption is None or not interruption.ends_here:
                return self._store_away(now)
            return self._leave(now)
        if finished is None:
            # Whoever killed it, the run can go on elsewhere; how often is bounded (`bounds`).
            if interruption is None or not interruption.ends_here:
                self.interruption = Interruption(KILLED, now, self._verdict(), code=128 + signal.SIGKILL)
            return [ev.Say("the program was killed from outside (SIGKILL)"), *self._leave(now)]
        if interruption is not None:
            # A program that ends while it is asked to save for an interruption may have ended because of it, with whatever code: signals
            # reach its helpers, or it saves and leaves by habit. Taken for its own end the work left would be lost without a word;
            # taken for the interruption's, at worst the steps since the last commit are done again.
            if interruption.verdict is Verdict.UNKNOWN and now < self._since + VERDICT_WAIT:
                return []
            if interruption.ends_here and finished.code == 0 and desk.saves_files and not self._final_save:
                self._final_save = True
                desk.save_files(interruption.reason, True, now)
                return []
            if interruption.ends_here:
                return self._leave(now)
        keeps = self.rules.state_dirs or self.rules.counters
        if finished.code == 0 and keeps and self.rules.commits and not self._final_save:
            # The last files of a finished program may be on a node that goes away: they are committed too.
            self._final_save = True
            desk.save_files(FINISHED, False, now)
            return []
        return self._end(self._cause(finished), now)

    def _end(self, finished: Finished, now: float) -> Actions:
        self.finished, self._since = finished, now
        return [ev.WriteEnd(finished.code, finished.reason)]
