"""The wrapper's loop: waits for signals, the program, the events socket and the workers, and does what the machine says.

It never waits for anything else: the store, Slurm and the watchers have threads of their own. Two threads for the store, so that looking
for a newer claim and deleting old checkpoints never stand before an urgent commit.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from job_wrapper.errors import ExitCode, Fenced, SpotburstError
from job_wrapper.notice.types import Notice, Watcher
from job_wrapper.run import asked
from job_wrapper.run import events as ev
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.child import Child
from job_wrapper.run.chores import Chores
from job_wrapper.run.counters import counters_of
from job_wrapper.run.hear import hear, seconds_of
from job_wrapper.run.machine import Machine
from job_wrapper.run.oom import oom_kills
from job_wrapper.run.server import Server
from job_wrapper.run.signals import IGNORED, Signals
from job_wrapper.run.surroundings import surroundings
from job_wrapper.run.worker import Results, Worker
from job_wrapper.slurm_job import SlurmJob

if TYPE_CHECKING:
    from job_wrapper.run.following import Following
    from job_wrapper.run.gang import Gang

CHECK_EVERY = 15.0
"""Seconds between looks for a newer claim, so that a fenced node stops its program also between commits."""
_FORWARDED = (signal.SIGINT, signal.SIGQUIT)
_JOB_CONTROL = (signal.SIGTSTP, signal.SIGCONT)


class Wrapper(Chores):
    """One run of ``spotburst run``."""

    def __init__(
        self,
        attempt: Attempt,
        machine: Machine | Following,
        child: Child,
        watchers: Sequence[Watcher],
        say: Callable[[str], None],
        socket_path: str,
        gang: Gang | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.attempt = attempt
        self.machine = machine
        self.child = child
        self.say = say
        self.clock = clock
        self._job: SlurmJob | None = attempt.job
        self._selector = selectors.DefaultSelector()
        self._results = Results()
        self._store = Worker("spotburst-store", self._results)
        self._upkeep = Worker("spotburst-upkeep", self._results)
        self._slurm = Worker("spotburst-slurm", self._results)
        self._watchers, self._gang = watchers, gang
        self._stopping = threading.Event()
        self._next_check: float | None = None
        self._oom_before = oom_kills()
        self._exit_seen = False
        self._collect_wanted = False
        self._code: int | None = None
        self.by_hand = False
        """Ctrl-C was sent to the program."""
        self._server = Server(self._selector, socket_path)

    def run(self) -> int:
        """Until it is over; returns the exit code. The program and all it started are gone then."""
        signals = Signals((*IGNORED, *_FORWARDED, *_JOB_CONTROL, asked.SIGNAL, signal.SIGCHLD))
        self._selector.register(self._results.fd, selectors.EVENT_READ, "results")
        self._selector.register(signals.fd, selectors.EVENT_READ, "signals")
        try:
            self._store.submit(self._begin)
            for watcher in self._watchers:
                threading.Thread(
                    target=watcher.watch, args=(self._emit, self._stopping.wait), daemon=True, name="spotburst-watch"
                ).start()
            while self._code is None:
                self._once(signals)
            return self._code
        finally:
            # The exit code is settled. Python gives signals back their defaults when it ends: one that comes then would change it.
            for number in (*IGNORED, *_FORWARDED):
                signal.signal(number, signal.SIG_IGN)
            self._stopping.set()
            self.child.close()
            self._server.close()
            if self._gang is not None and self._code != ExitCode.FENCED:
                self._gang.finish()

    @property
    def quiet(self) -> bool:
        """No worker is in the middle of something that may hang."""
        return self._store.idle and self._upkeep.idle and self._slurm.idle

    def _emit(self, notice: Notice | None) -> None:
        self._results.put(ev.Withdrawn() if notice is None else ev.Heard(notice))

    def _once(self, signals: Signals) -> None:
        now = self.clock()
        wake = self.machine.wake()
        times = [t for t in (wake, self._next_check) if t is not None]
        timeout = max(0.0, min(times) - now) if times else None
        for key, mask in self._selector.select(timeout):
            if key.data == "signals":
                for number in signals.take():
                    self._signalled(number)
            elif key.data == "results":
                for item in self._results.take():
                    self._result(item)
            else:
                self._programs_said(self._server.handle(key, mask), signals)
        self._reap()
        now = self.clock()
        if self._next_check is not None and now >= self._next_check:
            self._next_check = now + CHECK_EVERY
            if self._upkeep.idle:
                self._upkeep.submit(self._check)
        if wake is not None and now >= wake:
            self._event(ev.Tick())
        if self._collect_wanted and self._store.idle and self._upkeep.idle and self.machine.interruption is None:
            self._collect_wanted = False
            self._upkeep.submit(self._collect)

    # What happens

    def _signalled(self, number: int) -> None:
        if number in IGNORED:
            self._event(ev.Signalled(number))
        elif number == asked.SIGNAL:
            self._event(ev.Asked())
        elif number in _FORWARDED:
            if not self.child.started:
                self._code = 128 + number
            self.by_hand = True
            self.child.signal(number)
        elif number == signal.SIGTSTP:
            self.child.signal(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == signal.SIGCONT:
            self.child.signal(signal.SIGCONT)

    def _reap(self) -> None:
        if self._exit_seen or not self.child.started:
            return
        status = self.child.reap()
        if status is None:
            return
        self._exit_seen = True
        self._programs_said(self._server.drain())
        after = oom_kills()
        oom = self._oom_before is not None and after is not None and after > self._oom_before
        self._event(ev.Exited(status, oom))

    def _result(self, item: Any) -> None:
        if isinstance(item, BaseException):
            # A fault of our own in a worker: never silently lost, never the end of the program.
            self.say(f"internal error: {type(item).__name__}: {item}")
        elif isinstance(item, _Welcome):
            self._server.send(item.client, item.message)
        else:
            self._event(item)

    def _programs_said(
        self, heard: Sequence[tuple[int, dict[str, Any] | None]], signals: Signals | None = None
    ) -> None:
        for client, message in heard:
            for event in hear(client, message):
                if isinstance(event, ev.Subscribed):
                    if not self.attempt.epoch:
                        continue  # nobody can know the socket yet
                    self._server.send(client, self.attempt.welcome())
                    self._server.subscribe(client)
                self._event(event)
            kind = message.get("type") if message is not None else None
            if message is not None and kind == "restore.failed":
                self._restore_failed(client, message)
            elif message is not None and kind in ("restore.done", "progress"):
                self._progress(message)
            elif message is not None and kind == "metrics":
                self.attempt.curves.hear(message)
            elif message is not None and kind == "signal.ask" and signals is not None:
                self._server.send(client, {"type": "signal", "ago": signals.ago(message.get("number"))})

    def _progress(self, message: dict[str, Any]) -> None:
        counters = counters_of(message)
        if counters is not None:
            self.attempt.counters = counters
        self.attempt.note_going(seconds_of(message))

    def _restore_failed(self, client: int, message: dict[str, Any]) -> None:
        entry = message.get("entry")
        if not isinstance(entry, int):
            return
        error = str(message.get("error"))[:2000]

        def work() -> object:
            try:
                self.attempt.restore_older(entry, error)
            except Fenced:
                return ev.IsFenced(self.attempt.newer_epoch())
            except SpotburstError as failure:
                return self._given_up(failure)
            except Exception as failure:
                text = f"the checkpoint before entry {entry} can't be restored: {type(failure).__name__}: {failure}"
                return ev.GiveUp(int(ExitCode.RESTORE_FAILED), "RestoreFailed", text, write=True)
            return _Welcome(client, self.attempt.welcome())

        self._store.submit(work)

    # What is done

    def _event(self, event: ev.Event) -> None:
        for action in self.machine.on(event, self.clock()):
            self._act(action)

    def _act(self, action: ev.Action) -> None:
        if isinstance(action, ev.Say):
            self.say(action.text)
        elif isinstance(action, ev.Start):
            self._start()
        elif isinstance(action, ev.Ask):
            message = {
                "type": "checkpoint.request",
                "seq": action.seq,
                "urgent": action.urgent,
                "deadline": action.deadline,
                "reason": action.reason,
            }
            if action.client is None:
                self._server.broadcast(message)
            else:
                self._server.send(action.client, message)
        elif isinstance(action, ev.Answer):
            self._server.send(action.client, action.message)
        elif isinstance(action, ev.Save):
            interruption = self.machine.interruption
            notice = interruption.notice if interruption is not None and action.urgent else None
            pace = self.machine.desk.pace.told()
            self._store.submit(lambda: self._commit(action, notice, pace))
        elif isinstance(action, ev.QueryJob):
            self._slurm.submit(self._see_job)
        elif isinstance(action, ev.Requeue):
            self._slurm.submit(lambda: self._requeue(action))
        elif isinstance(action, ev.Unhold):
            self._slurm.submit(self._unhold)
        elif isinstance(action, ev.Tell):
            self._store.submit(lambda: self._tell(action.error))
        elif isinstance(action, ev.WriteSuspended):
            self._store.submit(lambda: self._write(lambda: self.attempt.suspended(action.arrived)))
        elif isinstance(action, ev.WriteInterrupted):
            self._store.submit(
                lambda: self._write(lambda: self.attempt.interrupted(action.reason, action.arrived, action.notice))
            )
        elif isinstance(action, ev.WriteEnd):
            self._store.submit(lambda: self._write_end(action))
        elif isinstance(action, ev.Stop):
            if action.fenced is not None:
                self._server.broadcast({"type": "fenced", "epoch": action.fenced})
                self.child.kill()
            else:
                self._server.broadcast({"type": "stop"})
                if self.child.started:
                    self.child.signal(signal.SIGTERM)
        elif isinstance(action, ev.Exit):
            self._code = action.code
        elif self._gang is not None:
            self._gang.act(action)

    def _start(self) -> None:
        attempt = self.attempt
        if self._gang is not None:
            from job_wrapper.run.gang import Board  # most wrappers are alone

            self._gang.start(Board(attempt.store, attempt.run, attempt.epoch), self._results.put, self._stopping.wait)
        try:
            self.child.start(attempt.options.command, surroundings(attempt, self._server.path))
        except OSError as error:
            self.say(f"can't start {attempt.options.command[0]}: {error.strerror}")
            self._exit_seen = True
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._event(ev.Exited(code))
            return
        self._next_check = self.clock() + CHECK_EVERY
        self._upkeep.submit(self._remove_dead)
        if self._job is not None and attempt.claimed and attempt.identity.restart_count:
            self._slurm.submit(self._store_found)


class _Welcome:
    """A new welcome for a client whose restore failed."""

    def __init__(self, client: int, message: dict[str, Any]) -> None:
        self.client = client
        self.message = message


def leave(code: int, quiet: bool) -> int:
    """End with ``code``: at once where a thread hangs, since Python would wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not quiet:
        os._exit(code)
    return code
