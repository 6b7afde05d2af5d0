"""Rank 0 of a job on several nodes: what it makes of what the other ranks tell (`gang`). The part of `machine` that knows of them.

A program fails on every node when one node is lost: its ranks wait for each other. So before a failure is taken for the program's own,
which ends the run, the other nodes are called: one whose wrapper does not answer is lost, and the job is brought back.
"""

from __future__ import annotations

import signal

from job_wrapper.errors import CheckpointFailed, NodeLost, RestoreFailed
from job_wrapper.run import events as ev
from job_wrapper.run.desk import Actions
from job_wrapper.run.leaving import Leaving
from job_wrapper.run.rules import KILLED, OUT_OF_MEMORY, PROGRAM_FAILED, Finished, Interruption, Phase, Rules

WHOLE_FOR = 30.0
"""Seconds for which an answered call stands."""
FOR_ANOTHER = (PROGRAM_FAILED, CheckpointFailed.reason, RestoreFailed.reason)
"""How a program ends whose ranks wait in vain for one that is lost: saving and restoring are done together, too."""
CALL_BOUND = 140.0
"""Seconds for which the outcome of a call is waited for, whatever keeps it: `gang` gives a call up sooner, unless the store hangs."""


class Peers(Leaving):
    """See above."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._standing: set[str] = set()
        """Nodes whose notices stand; "" is this one."""
        self._unheard: dict[str, ev.Heard] = {}
        """By node: notices that came while a finished program's last save was in flight."""
        self._taken: set[str] = set()
        """Those of them that their cloud takes away."""
        self._call_by: float | None = None
        """While the nodes are called: until when that is waited for."""
        self._whole_until: float | None = None
        self._peer_failed: Finished | None = None
        self._step_ends = False
        """Slurm ends the step, and not the job."""

    @property
    def _calling(self) -> bool:
        return self._call_by is not None

    def _on_withdrawn(self, event: ev.Withdrawn, now: float) -> Actions:
        self._standing.discard(event.peer)
        self._unheard.pop(event.peer, None)
        self._taken.discard(event.peer)
        interruption = self.interruption
        if self._standing:
            return []  # another node's stands
        if self.phase is not Phase.RUNNING or interruption is None or interruption.number is not None:
            return []
        self.interruption = None
        return [ev.Say("the notice was withdrawn: going on")]

    def _on_peerended(self, event: ev.PeerEnded, now: float) -> Actions:
        if self.phase not in (Phase.RUNNING, Phase.FINISHING) or self.finished is not None:
            return []
        said = ev.Say(f"the program of rank {event.rank} on {event.node} ended with {event.code} ({event.reason})")
        if self._ends_here:
            return [said]
        if event.reason == KILLED:
            self.interruption = Interruption(KILLED, now, self._verdict(), code=event.code)
            return [said, *self._leave(now)]
        self._peer_failed = self._peer_failed or Finished(event.code, event.reason)
        return [said, *self._call_roll(now)]

    def _on_rollcalled(self, event: ev.RollCalled, now: float) -> Actions:
        self._call_by = None
        if self.phase not in (Phase.RUNNING, Phase.FINISHING) or self.finished is not None or self._ends_here:
            return []
        if not event.missing:
            self._whole_until = now + WHOLE_FOR
            return [ev.Release(), *(self._peers_failure(now) if self._step_ends else [])]
        self.interruption = Interruption(NodeLost.reason, now, self._verdict(), code=self._leave_code())
        lost = ", ".join(event.missing)
        return [ev.Say(f"{lost}: lost, its wrapper does not answer; this attempt ends"), *self._leave(now)]

    def _broken(self, said: str, lost: tuple[str, ...]) -> Actions:
        """Slurm has requeued the job because it lost nodes: the other ranks wait for theirs in vain, and nothing more can be saved."""
        self.desk.settled = True
        if self.interruption is not None:
            self.interruption.reason = NodeLost.reason
        return [ev.Say(f"{said}: {', '.join(lost)} is lost, and with it what was not committed")]

    def _call_first(self, finished: Finished | None, now: float) -> Actions | None:
        """The program here has ended. None: what that means does not depend on the other nodes, or they have answered."""
        asks = self.rules.peers and finished is not None and finished.reason in FOR_ANOTHER and not self._ends_here
        if not asks or (self._whole_until is not None and now <= self._whole_until):
            return None
        if self._call_by is not None and now >= self._call_by:
            return None
        return self._call_roll(now)

    def _call_roll(self, now: float) -> Actions:
        if self._calling:
            return []
        self._call_by = now + CALL_BOUND
        return [ev.CallRoll()]

    def _cause(self, finished: Finished) -> Finished:
        """Ranks fail for the one that ran out of memory: that is what its user can do something about."""
        first = self._peer_failed
        if first is not None and first.reason == OUT_OF_MEMORY and finished.reason in FOR_ANOTHER:
            return Finished(finished.code, OUT_OF_MEMORY)
        return finished

    def _peers_failure(self, now: float) -> Actions:
        """A signal came, and Slurm says that the job goes on: ``srun --kill-on-bad-exit`` ends the step of a rank that has failed."""
        failed, interruption = self._peer_failed, self.interruption
        by_slurm = interruption is not None and interruption.number == signal.SIGTERM
        if failed is None or self.phase is not Phase.RUNNING or not (by_slurm or self._step_ends):
            return []  # what its user sends ends nothing
        self._step_ends = True
        if self._calling:
            return []  # a rank may have failed because a node is lost
        self.phase, self._since, self.finished = Phase.FINISHING, now, failed
        return [
            ev.Say("the step is ended because a rank of it has failed"),
            ev.Stop(),
            ev.WriteEnd(failed.code, failed.reason),
        ]

    def _leaves(self) -> tuple[str, ...]:
        return tuple(sorted(self._taken))

    @property
    def _ends_here(self) -> bool:
        return self.interruption is not None and self.interruption.ends_here
