"""Rank 0's decisions and the other ranks' together, in any order of notices, losses and failures, with words that travel slowly.

What must hold: all ranks leave for one requeue; no other rank's program is ended before rank 0 has saved or the time is up; a node that is
lost never ends the run; a program that fails does.
"""

from __future__ import annotations

import heapq
import itertools
import random
import signal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.following import Following
from job_wrapper.run.machine import Machine
from job_wrapper.run.rules import NO_DEADLINE, Phase, Rules
from job_wrapper.slurm_job import JobView
from tests.unit.run.drive import PARTS

WINDOW = 60.0
"""Seconds of notice."""
CALL = 20.0


class World:
    """One job of several nodes with a rank each: a log, a Slurm, programs that depend on each other, and time."""

    def __init__(self, ranks: int, seed: int, requeue: bool = True) -> None:
        self.brings_back = requeue
        self.dice = random.Random(seed)
        self.now = 1000.0
        self._queue: list[tuple[float, int, int, Any]] = []
        self._order = itertools.count()
        self.machines: list[Machine | Following] = [
            Machine(Rules(peers=True, requeue=requeue)),
            *(Following(Rules(peers=True, commits=False, requeue=requeue)) for _ in range(ranks - 1)),
        ]
        self.alive = [True] * ranks
        self.program = ["running"] * ranks
        self.restarts = 0
        self.job = "RUNNING"
        self.head = ev.HeadSeen()
        self.released = False
        self.ends: list[ev.WriteEnd] = []
        self.interrupted: list[str] = []
        self.requeues = 0
        self.codes: dict[int, int] = {}
        self.failed = self.lost = False
        self.deadline: float | None = None
        self.ended_at: float | None = None
        for rank in range(ranks):
            self.feed(rank, ev.Ready())
        self.feed(0, ev.Subscribed(1))

    def later(self, rank: int, event: Any, least: float = 0.0, most: float = 0.5) -> None:
        at = self.now + self.dice.uniform(least, most)
        heapq.heappush(self._queue, (at, next(self._order), rank, event))

    def run(self, until: float) -> None:
        while True:
            acting = [r for r, m in enumerate(self.machines) if self.alive[r] and m.phase is not Phase.OVER]
            wakes = [(w, r) for r in acting if (w := self.machines[r].wake()) is not None]
            at, rank = min(wakes, default=(until, -1))
            if self._queue and self._queue[0][0] <= min(at, until):
                self.now, _, rank, event = heapq.heappop(self._queue)
                if callable(event):
                    event()
                else:
                    self.feed(rank, event)
            elif rank >= 0 and at <= until:
                self.now = at
                self.feed(rank, ev.Tick())
            else:
                self.now = until
                return

    def feed(self, rank: int, event: Any) -> None:
        if not self.alive[rank] or self.machines[rank].phase is Phase.OVER:
            return
        if isinstance(event, ev.Exited) and self.program[rank] == "gone":
            return
        if isinstance(event, ev.Exited):
            self.program[rank] = "gone"
        for action in self.machines[rank].on(event, self.now):
            self.act(rank, action)

    # What the machines do

    def act(self, rank: int, action: Any) -> None:
        if isinstance(action, ev.Ask):
            if self.program[0] == "running" and all(self.alive):
                self.later(0, ev.CommitAsked(1, action.seq, 5, PARTS), 0.1, 5.0)
        elif isinstance(action, ev.Save):
            self.later(0, ev.Committed(7, 0.5), 0.1, 3.0)
        elif isinstance(action, ev.Answer) and action.message.get("stop"):
            for each in range(len(self.machines)):
                self.later(each, ev.Exited(0), 0.0, 2.0)  # at the same step, and not at the same moment
        elif isinstance(action, ev.QueryJob):
            self.later(rank, ev.JobSeen(JobView(self.job, restart_count=self.restarts, start_time=500.0)))
        elif isinstance(action, ev.Requeue):
            self.requeue(rank)
        elif isinstance(action, ev.WriteInterrupted):
            if rank == 0:
                self.interrupted.append(action.reason)
                self.head = ev.HeadSeen(leaving=True)
            self.later(rank, ev.Written())
        elif isinstance(action, ev.WriteEnd):
            self.ends.append(action)
            self.head = ev.HeadSeen(leaving=True, ended=True)
            self.later(rank, ev.Written())
        elif isinstance(action, ev.LookAtHead):
            self.later(rank, lambda: self.feed(rank, self.head._replace(released=self.released)))
        elif isinstance(action, ev.TellNotice):
            told = ev.Withdrawn(f"n{rank}") if action.notice is None else ev.Heard(action.notice, f"n{rank}")
            self.later(0, told, 0.0, 3.0)
        elif isinstance(action, ev.TellEnded):
            self.later(0, ev.PeerEnded(rank, f"n{rank}", action.code, action.reason), 0.0, 3.0)
        elif isinstance(action, ev.CallRoll):
            missing = tuple(f"n{r}" for r, alive in enumerate(self.alive) if not alive)
            self.later(0, ev.RollCalled(missing), CALL if missing else 0.5, CALL + 1 if missing else 4.0)
        elif isinstance(action, ev.Release):
            self.released = True
        elif isinstance(action, (ev.Stop, ev.Exit)):
            self.stopped(rank)
            if isinstance(action, ev.Exit):
                self.takes_the_step_with_it(rank, action.code)
                self.program[rank] = "gone"
                self.codes[rank] = action.code

    def takes_the_step_with_it(self, rank: int, code: int) -> None:
        """``srun --kill-on-bad-exit``: a task that ends with a failure ends all others at once."""
        if rank == 0 or code == 0 or self.job != "RUNNING" or not self.alive[0] or self.machines[0].phase is Phase.OVER:
            return
        time_is_up = self.deadline is not None and self.now >= self.deadline - 5.0
        assert self.head.ended or self.released or time_is_up, f"rank {rank} ends rank 0 with {code}"

    def stopped(self, rank: int) -> None:
        """The wrapper ends its program."""
        if rank == 0 or self.program[rank] == "gone" or not self.alive[0]:
            return
        time_is_up = self.deadline is not None and self.now >= self.deadline - 5.0
        killed = self.ended_at is not None and self.now >= self.ended_at + NO_DEADLINE
        assert self.head.leaving or time_is_up or killed, "rank 0 may still be saving"

    # What happens to them

    def requeue(self, rank: int) -> None:
        if self.job != "RUNNING":
            self.later(rank, ev.RequeueRefused("Job is pending execution"))
            return
        if rank > 0 and self.alive[0] and self.machines[0].phase is not Phase.OVER:
            assert self.deadline is not None and self.now >= self.deadline - 5.0, "rank 0 requeues"
        self.requeues += 1
        self.ended_by_slurm()
        self.later(rank, ev.Requeued())

    def ended_by_slurm(self) -> None:
        self.job, self.restarts, self.ended_at = "COMPLETING", 1, self.now
        for rank in range(len(self.machines)):
            self.later(rank, ev.Signalled(signal.SIGTERM), 0.0, 0.2)

    def notice(self, rank: int) -> None:
        if self.deadline is None:
            self.deadline = self.now + WINDOW
            self.feed(rank, ev.Heard(Notice("aws", "reclaim", "x", self.now, self.deadline)))

    def vanish(self, rank: int) -> None:
        """Its peers' programs fail some time after; Slurm is told a minute later, and requeues."""
        if not all(self.alive):
            return
        self.alive[rank] = False
        self.lost = True
        for other in range(len(self.machines)):
            # 87: it noticed while it saved.
            self.later(other, ev.Exited(self.dice.choice([1, 87])), 0.1, 100.0)
        self.later(0, self.set_down, 60.0, 70.0)

    def requeued_by_user(self, rank: int) -> None:
        self.set_down()

    def set_down(self) -> None:
        if self.job == "RUNNING":
            self.ended_by_slurm()

    def fail(self, rank: int) -> None:
        if self.lost or self.program[rank] == "gone":
            return
        self.failed = True
        self.feed(rank, ev.Exited(1))
        for other in range(len(self.machines)):
            self.later(other, ev.Exited(1), 0.1, 10.0)


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["notice", "vanish", "fail", "requeued_by_user"]), st.integers(0, 2), st.floats(0.0, 30.0)
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(ranks=st.integers(2, 3), seed=st.integers(0, 1 << 30), happenings=HAPPENINGS, requeue=st.booleans())
def test_all_ranks_leave_together_whatever_happens(
    ranks: int, seed: int, happenings: list[tuple[str, int, float]], requeue: bool
) -> None:
    """``requeue``: or ``--on-interruption fail`` was given."""
    world = World(ranks, seed, requeue)
    for what, rank, pause in happenings:
        world.run(world.now + pause)
        getattr(world, what)(rank % ranks)
    world.run(world.now + 400.0)
    for rank, machine in enumerate(world.machines):
        assert not world.alive[rank] or machine.phase is Phase.OVER, f"rank {rank} stays"
    assert world.requeues <= (1 if requeue else 0)
    if not requeue:
        assert world.ends or world.job != "RUNNING" or not world.alive[0], "it ends, and says so"
        for end in world.ends:
            assert world.failed or end.reason in ("Preempted", "NodeLost")
        return
    assert len(world.ends) <= 1
    if world.ends:
        assert world.failed and world.ends[0].code == 1, "only a program that failed by itself ends the run"
        assert world.requeues == 0 or world.deadline is not None
    elif not world.failed:
        assert world.job != "RUNNING", "the job comes back"
