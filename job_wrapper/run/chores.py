"""What the wrapper's worker threads do: all that may be slow, at the store and at Slurm. Each chore returns the event that tells of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from job_wrapper.errors import ExitCode, Fenced, SpotburstError, StoreAway, StoreError, StoreRefused, kind_of, may_pass
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.machine import Machine
from job_wrapper.run.server import Server, remove_dead
from job_wrapper.slurm_job import SlurmJob

if TYPE_CHECKING:
    from job_wrapper.run.following import Following


class Chores:
    """The half of `loop` that runs in other threads."""

    attempt: Attempt
    machine: Machine | Following
    say: Callable[[str], None]
    clock: Callable[[], float]
    _job: SlurmJob | None
    _server: Server
    _collect_wanted: bool

    def _remove_dead(self) -> None:
        with contextlib.suppress(OSError):
            remove_dead(Path(self._server.path).parents[1], self.clock())

    def _begin(self) -> ev.Event:
        try:
            self.attempt.begin()
        except SpotburstError as error:
            return self._given_up(error)
        except Exception as error:
            return ev.GiveUp(1, "Internal", f"internal error: {type(error).__name__}: {error}")
        restored = self.attempt.restored
        attempt, committed = self.attempt, restored.time if restored is not None else None
        return ev.Ready(bool(attempt.parts), committed, attempt.started, attempt.limit)

    def _given_up(self, error: SpotburstError) -> ev.Event:
        if may_pass(error) and self.attempt.waits:
            return ev.GiveUp(int(ExitCode.STORE_AWAY), StoreAway.reason, str(error))
        if not isinstance(error, StoreError):  # which the other ranks see for themselves
            with contextlib.suppress(SpotburstError):
                self.attempt.tell_refused(int(error.exit_code))
        self._comment(error.reason, int(error.exit_code))
        return ev.GiveUp(int(error.exit_code), error.reason, str(error))

    def _commit(self, save: ev.Save, notice: Notice | None, pace: dict[str, object]) -> ev.Event:
        try:
            entry, seconds = self.attempt.commit(save, notice, pace)
        except Fenced:
            return ev.IsFenced(self.attempt.newer_epoch())
        except StoreRefused as error:
            return ev.CommitFailed(str(error), again=False, kind=error.reason, code=int(error.exit_code))
        except StoreError as error:
            return ev.CommitFailed(str(error), again=True, kind=kind_of(error), code=int(ExitCode.CHECKPOINT_FAILED))
        except SpotburstError as error:
            lost = getattr(error, "lost", None)  # of NothingToSave, which is not imported at start
            kind, code = error.reason, int(error.exit_code)
            return ev.CommitFailed(
                str(error), False, nothing=lost is not None, quiet=lost is False, kind=kind, code=code
            )
        except OSError as error:
            return ev.CommitFailed(f"{error.filename or 'a file'}: {error.strerror}", again=False)
        except Exception as error:
            return ev.CommitFailed(f"internal error: {type(error).__name__}: {error}", again=False)
        step = entry.body.get("step")
        what = "state directories" if step is None else f"step {step}"
        if self.machine.rules.counters:
            what = f"progress {step}"
        self.say(f"committed {what} (epoch {entry.epoch}, entry {entry.seq}) in {seconds:.1f} s")
        self._collect_wanted = True
        return ev.Committed(entry.seq, seconds)

    def _write(self, write: Callable[[], None]) -> ev.Event:
        if not self.attempt.claimed:
            return ev.Written()
        try:
            write()
        except Fenced:
            return ev.IsFenced(self.attempt.newer_epoch())
        except SpotburstError as error:
            return ev.Written(str(error), again=may_pass(error))
        except Exception as error:
            return ev.Written(f"internal error: {type(error).__name__}: {error}")
        return ev.Written()

    def _unhold(self) -> None:
        if self._job is not None:
            self._job.release(self.attempt.identity.name_id)

    def _tell(self, error: str) -> None:
        with contextlib.suppress(SpotburstError):  # whoever asked waits in vain then, and says so
            self.attempt.answer(error)

    def _write_end(self, action: ev.WriteEnd) -> ev.Event:
        written = self._write(lambda: self.attempt.end(*action))
        if isinstance(written, ev.Written) and action.code:
            self._comment(action.reason, action.code)
        return written

    def _comment(self, reason: str, code: int) -> None:
        """Why the job ends, where its users look first; while it runs, since Slurm takes no comment of a job that has ended."""
        if self._job is not None and code and self.attempt.commits:
            from job_wrapper.comments import comment
            from job_wrapper.reasons import said

            standing = self._job.comment()
            if standing is not None:
                self._job.set_comment(comment(standing, said(reason, code)))

    def _requeue(self, asked: ev.Requeue) -> ev.Event:
        refused, text = "no Slurm job", ""
        if self._job is not None and asked.leaves:
            from job_wrapper.run import departing

            departing.tell(self._job, [name or self.attempt.node.here for name in asked.leaves], self.clock())
        if self._job is not None and asked.away:
            from job_wrapper.run import outages  # seldom

            refused, text = outages.requeue(self._job, self.attempt.epoch > 0, self.attempt.started, self.clock())
        elif self._job is not None:
            refused = self._job.requeue(hold=asked.hold)
        return ev.RequeueRefused(refused) if refused else ev.Requeued(text)

    def _store_found(self) -> None:
        from job_wrapper.run import outages

        if self._job is not None:
            outages.clear(self._job)

    def _see_job(self) -> ev.Event:
        view, rules = self._job.view() if self._job is not None else None, self.machine.rules
        lost: tuple[str, ...] = ()
        asks = rules.peers and self.attempt.commits  # one rank: slurmctld has most to do when many nodes are lost
        if asks and self._job is not None and view is not None and view.restart_count > rules.restart_count:
            lost = self._job.lost_nodes(self.attempt.identity.node_list)
        return ev.JobSeen(view, lost)

    def _check(self) -> ev.Event | None:
        try:
            self.attempt.check()
        except Fenced:
            return ev.IsFenced(self.attempt.newer_epoch())
        except SpotburstError:
            return None  # a store that does not answer says nothing; the program goes on
        return None

    def _collect(self) -> ev.Event | None:
        try:
            self.attempt.collect()
        except Fenced:
            return ev.IsFenced(self.attempt.newer_epoch())
        except SpotburstError as error:
            self.say(f"old checkpoints could not be deleted: {error}")
        return None
