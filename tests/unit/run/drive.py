"""Drives the wrapper's machine through events, without a process, a store or a clock."""

from __future__ import annotations

from typing import Any

from job_wrapper.errors import ExitCode
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.machine import Machine
from job_wrapper.run.rules import Rules
from job_wrapper.slurm_job import JobView
from job_wrapper.store.io_types import ObjectRef

PARTS = {"rank-0": ObjectRef("c/1/main/data/e00000001/x.part", 1, "xxh3-128:" + "0" * 32)}
RUNNING = JobView("RUNNING", start_time=500.0)
PREEMPTED = JobView("RUNNING", start_time=500.0, preempt_time=1000.0, end_time=1030.0)
ENDING = JobView("COMPLETING", start_time=500.0)
REQUEUED = JobView("COMPLETING", restart_count=1)


def reclaim(now: float = 1000.0, deadline: float | None = 1120.0) -> ev.Heard:
    return ev.Heard(Notice("aws", "reclaim", "id-1", now, deadline))


class Drive:
    """Feeds a machine and keeps what it did."""

    def __init__(self, ready: bool = True, **rules: Any) -> None:
        self.machine = Machine(Rules(**rules))
        self.now = 1000.0
        self.did: list[Any] = []
        if ready:
            self(ev.Ready())
            self.did.clear()

    def __call__(self, event: ev.Event, at: float | None = None) -> list[Any]:
        self.now = at if at is not None else self.now
        actions = self.machine.on(event, self.now)
        self.did += actions
        return actions

    def wait(self, until: float) -> list[Any]:
        """Let time pass as the loop does."""
        actions = []
        for _ in range(1000):
            wake = self.machine.wake()
            if wake is None or wake > until:
                break
            actions += self(ev.Tick(), wake)
        else:
            raise AssertionError("the machine keeps waking without an end")
        self.now = until
        return actions

    def took(self, kind: type) -> list[Any]:
        return [a for a in self.did if isinstance(a, kind)]

    @property
    def code(self) -> int | None:
        exits = self.took(ev.Exit)
        return exits[0].code if exits else None


def kinds(actions: list[Any]) -> list[str]:
    return [type(a).__name__ for a in actions if not isinstance(a, ev.Say)]


def requeue_through(d: Drive) -> None:
    assert "WriteInterrupted" in kinds(d.did)
    assert kinds(d(ev.Written())) == ["QueryJob"]
    assert kinds(d(ev.JobSeen(RUNNING))) == ["Requeue"]
    d(ev.Requeued())
    assert d.code == ExitCode.REQUEUED
