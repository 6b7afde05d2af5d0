"""Checkpoints asked for, answered, committed: who is asked, whose answer counts, what is committed next. Pure, like `machine`.

One request stands at a time and one commit is in flight at a time. ``settled`` is what an interruption waits for: an urgent
checkpoint is committed, or it is known that there will be none.
"""

from __future__ import annotations

from job_wrapper.errors import StoreAway
from job_wrapper.run import events as ev
from job_wrapper.run.pace import Pace
from job_wrapper.run.rules import Rules

RETRY_WAIT = 1.0
"""Seconds between tries of a commit, and between urgent requests that the program declines."""
TRIES = 5
"""Tries of a commit that is not urgent."""
LATER_WAIT = 15.0
"""Seconds between further tries, where there is time for them."""
ASK_AGAIN = 60.0
"""Seconds to the next ordinary checkpoint after one that failed."""
SAY_AGAIN = 600.0
"""Seconds between words about a store that stays away."""
QUIET_WAIT = 180.0
"""Seconds after which a program that nothing can be saved of is told about, unless an interval has told before."""
AWAY = StoreAway.reason
NOTHING = "nothing to save: the program has no Checkpointer (or has not come to it yet), and there is no --state-dir"

Actions = list[ev.Action]


class Desk:
    """Requests and commits of one attempt."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.pace = Pace(rules.interval, rules.rate)
        self.subscribers: set[int] = set()
        self.request: ev.Ask | None = None
        self.in_flight: ev.Save | None = None
        self.settled = False
        self.urgent_entry: int | None = None
        """The log entry of the urgent checkpoint that settled it."""
        self.refusal = ""
        """Why there is none, as far as it is known."""
        self.unchanged = False
        """There was nothing to save that the last commit does not hold."""
        self.has_parts = False
        """Checkpoints of this run hold parts of the program's own: one of the state directories alone would be restored without them."""
        self.known = False
        """A program has subscribed, now or earlier."""
        self.last_commit = 0.0
        """Seconds that the last commit took."""
        self.committed_at: float | None = None
        """When the newest commit was made; None before the run's first."""
        self._away_since: float | None = None
        self._say_away_at = 0.0
        self.next_save: float | None = None
        self.quiet_at: float | None = None
        """When to look whether there is anything to save."""
        self.ask_again: float | None = None
        self.retry_at: float | None = None
        self._queue: list[ev.Save] = []
        self._held: list[tuple[ev.Save, int]] = []
        self._seq = 0
        self._asked_at = 0.0
        self._stall: tuple[int, float] | None = None
        """Request, and seconds that the program stood still for it."""
        self._acked: set[int] = set()
        self._declined: set[int] = set()
        self._tries = 0
        self._said_nothing_to_save = False
        self._said = ""

    @property
    def busy(self) -> bool:
        """A commit is in flight or waits for its turn."""
        return self.in_flight is not None or bool(self._queue)

    @property
    def retrying(self) -> bool:
        """The commit in flight has failed, and is tried again."""
        return self.in_flight is not None and self._tries > 0

    @property
    def saves_files(self) -> bool:
        """The state directories, or the counters, can be committed without the program."""
        return (self.rules.state_dirs or self.rules.counters) and self.rules.commits and not self.has_parts

    # Asking

    def ask(self, urgent: bool, deadline: float | None, reason: str, now: float) -> Actions:
        """Ask the program, or save its state directories when nobody will answer. What already stands is not asked again."""
        self.ask_again = None
        if self.request is not None and (self.request.urgent or not urgent):
            return []
        if urgent and any(save.urgent for save in [*self._queue, *([self.in_flight] if self.in_flight else [])]):
            return []
        if self.subscribers and not self.rules.counters:
            self._seq += 1
            self._acked, self._declined = set(), set()
            self.request, self._asked_at = ev.Ask(self._seq, urgent, deadline, reason), now
            return [self.request]
        self.request = None
        if self.saves_files:
            self._enqueue(ev.Save(None, None, {}, reason, urgent, answered=now))
            return []
        self.settled, self.refusal = self.settled or urgent, NOTHING
        return self._nothing_to_save()

    def quiet_due(self, now: float) -> Actions:
        """Say once, some minutes after the start, that nothing of this program is saved: an interval may be long."""
        if self.quiet_at is None or now < self.quiet_at:
            return []
        self.quiet_at = None
        return [] if self.known or self.saves_files else self._nothing_to_save()

    def _nothing_to_save(self) -> Actions:
        if self._said_nothing_to_save or not self.rules.commits or self.has_parts:
            return []
        self._said_nothing_to_save = True
        return [ev.Say(NOTHING)]

    def save_files(self, reason: str, urgent: bool, now: float) -> None:
        """Commit the state directories without the program's word; those who acknowledged are answered with it."""
        seq = self.request.seq if self.request is not None else None
        asked = self._asked_at if self.request is not None else None
        self._enqueue(ev.Save(seq, None, {}, reason, urgent, tuple(sorted(self._acked)), asked, now, self.has_parts))
        self._forget_request()

    # The program's words

    def subscribed(self, client: int) -> Actions:
        """A request that stands is told to who comes late."""
        self.subscribers.add(client)
        self.known, self.quiet_at = True, None
        r = self.request
        return [] if r is None else [ev.Ask(r.seq, r.urgent, r.deadline, r.reason, client=client)]

    def left(self, client: int, now: float) -> Actions:
        """A connection is closed: it is waited for no longer."""
        self.subscribers.discard(client)
        self._acked.discard(client)
        self._declined.discard(client)
        request = self.request
        if request is not None and not self.subscribers:
            self._forget_request()
            return self.ask(request.urgent, request.deadline, request.reason, now) if request.urgent else []
        return self._all_answered(now)

    def acked(self, event: ev.Acked, now: float) -> Actions:
        """The state directories are consistent."""
        if not self.saves_files:
            why = "no state directory was given (--state-dir): there is nothing to save"
            if self.has_parts:
                why = "checkpoints of this run hold parts of the program's own: commit those (checkpoint.commit), the files go with them"
            if not self.rules.commits:
                why = "only the wrapper of rank 0 commits"
            if self.request is not None and event.seq == self.request.seq:
                self.settled = self.settled or self.request.urgent
                self._forget_request()
            return [failed(event.client, event.seq, why)]
        if self.request is None or event.seq != self.request.seq:
            return [failed(event.client, event.seq, "this request was already answered or replaced")]
        self._acked.add(event.client)
        return self._all_answered(now)

    def declined(self, event: ev.Declined, now: float) -> Actions:
        """The program could not save."""
        self.refusal = f"the program could not checkpoint: {event.error}"
        said: Actions = [ev.Say(f"the program could not checkpoint: {event.error}")]
        if event.kind == AWAY:
            said = self._away(event.error, now)
        if self.request is None or event.seq != self.request.seq:
            return said
        self._declined.add(event.client)
        return said + self._all_answered(now)

    def staged(self, event: ev.Staged) -> Actions:
        """The program goes on while its state is written; of several ranks the slowest counts."""
        longest = self._stall[1] if self._stall is not None and self._stall[0] == event.seq else 0.0
        self._stall = (event.seq, max(longest, event.seconds))
        return []

    def going(self, event: ev.Going, now: float) -> None:
        """The program works. A run that turns out to be short is saved the sooner."""
        before = self.pace.seconds
        self.pace.going(event.restored, event.completed, event.total, now)
        if self.next_save is not None and self.pace.seconds < before:
            self.next_save = min(self.next_save, now + self.pace.seconds)

    def commit_asked(self, event: ev.CommitAsked, now: float) -> Actions:
        """Parts are in the store."""
        if not self.rules.commits:
            return [failed(event.client, event.seq, "only the wrapper of rank 0 commits")]
        self.has_parts = True
        request, clients = self.request, {event.client}
        stall = self._stall[1] if self._stall is not None and self._stall[0] == event.seq else None
        save = ev.Save(event.seq, event.step, event.parts, "program", False, (event.client,), None, now, stall=stall)
        if request is not None and event.seq is not None and event.seq >= request.seq:
            clients |= self._acked
            save = ev.Save(
                event.seq,
                event.step,
                event.parts,
                request.reason,
                request.urgent,
                tuple(sorted(clients)),
                self._asked_at,
                now,
                stall=stall,
            )
            self._forget_request()
        self._enqueue(save)
        return []

    def program_gone(self) -> None:
        """Nobody answers any more; what was committed before stays in the queue."""
        self.subscribers.clear()
        self._forget_request()
        self.ask_again = None

    # Commits

    def committed(self, event: ev.Committed, now: float) -> Actions:
        """The one in flight is in the log."""
        done, self.in_flight = self.in_flight, None
        self._tries, self.retry_at, self._said = 0, None, ""
        self.last_commit = event.seconds
        said: Actions = []
        if done is not None:
            self._held.append((done, event.entry))
            self.settled = self.settled or done.urgent
            self.urgent_entry = event.entry if done.urgent else self.urgent_entry
            before = self.pace.saved(done, event.seconds)
            if before is not None:
                said = [ev.Say(f"checkpoints every {_age(self.pace.seconds)} from now on: {self.pace.now.why}")]
        self.next_save = now + self.pace.seconds
        away, self._away_since, self.committed_at = self._away_since, None, now
        return said if away is None else [*said, ev.Say(f"the store is back after {_age(now - away)}")]

    def _away(self, error: str, now: float) -> Actions:
        """The store can't be reached: said at first and then now and again, with what that puts at risk."""
        if self._away_since is not None and now < self._say_away_at:
            return []
        since = "" if self._away_since is None else f" for {_age(now - self._away_since)}"
        self._away_since, self._say_away_at = self._away_since or now, now + SAY_AGAIN
        stands = "there is no commit yet"
        if self.committed_at is not None:
            stands = f"the last commit is {_age(now - self.committed_at)} old"
        return [ev.Say(f"no checkpoint{since}: the store can't be reached, it is tried again; {stands}: {error}")]

    def commit_failed(self, event: ev.CommitFailed, keep_trying: bool, now: float) -> Actions:
        """It was not made: again a little later, or give up; the previous commit stands."""
        lost = self.in_flight
        if lost is None:
            return []
        self._tries += 1
        if event.again and (keep_trying or (self._tries < TRIES and not lost.urgent)):
            self.retry_at = now + (RETRY_WAIT if lost.urgent or self._tries < TRIES else LATER_WAIT)
            if event.kind == AWAY:
                return self._away(event.error, now)
            return [ev.Say(f"commit failed, trying again: {event.error}")] if self._tries == 1 else []
        self.in_flight, self._tries = None, 0
        self.next_save = now + min(ASK_AGAIN, self.pace.seconds)
        self.settled = self.settled or lost.urgent
        self.refusal, self.unchanged = event.error, event.quiet
        text = f"no commit, the previous one stands: {event.error}"
        said: Actions = [] if event.quiet or text == self._said else [ev.Say(text)]
        self._said = text
        if event.kind == AWAY:
            said = self._away(event.error, now)
        return said + [failed(client, lost.seq, event.error, event.kind) for client in lost.clients]

    def next(self, now: float) -> Actions:
        """The commit to do now, if any."""
        if self.in_flight is not None:
            if self.retry_at is None or now < self.retry_at:
                return []
            self.retry_at = None
            return [self.in_flight]
        if not self._queue:
            return []
        self.in_flight = self._queue.pop(0)
        return [self.in_flight]

    def release(self, stop: bool, *, hold_urgent: bool = False) -> Actions:
        """Tell those who wait that their commits are in the log. ``hold_urgent``: not yet those who may have to stop."""
        kept = [item for item in self._held if hold_urgent and item[0].urgent]
        told = [item for item in self._held if not (hold_urgent and item[0].urgent)]
        self._held = kept
        return [
            ev.Answer(client, {"type": "checkpoint.committed", "seq": save.seq, "entry": entry, "stop": stop})
            for save, entry in told
            for client in save.clients
        ]

    @property
    def holds(self) -> bool:
        """Somebody waits for the answer to a commit that is in the log."""
        return bool(self._held)

    def interval_due(self, now: float) -> Actions:
        """The ordinary checkpoint, unless one is under way."""
        if self.next_save is None or now < self.next_save:
            return []
        self.next_save = now + self.pace.seconds
        if self.busy or not self.rules.commits:
            return []
        return self.ask(False, None, "interval", now)

    def _all_answered(self, now: float) -> Actions:
        """An acknowledged request is met once every subscriber has answered; one that all decline is asked again."""
        request = self.request
        if request is None or not self.subscribers <= self._acked | self._declined:
            return []
        if self._acked:
            self.save_files(request.reason, request.urgent, now)
        else:
            self.ask_again = now + (RETRY_WAIT if request.urgent else min(ASK_AGAIN, self.pace.seconds))
            self._forget_request()
        return []

    def _forget_request(self) -> None:
        self.request = None
        self._acked, self._declined = set(), set()

    def _enqueue(self, save: ev.Save) -> None:
        # What is urgent goes before what only waits for its turn.
        at = sum(1 for queued in self._queue if queued.urgent) if save.urgent else len(self._queue)
        self._queue.insert(at, save)


def failed(client: int, seq: int | None, error: str, kind: str = "CheckpointFailed") -> ev.Answer:
    """The answer to a commit that was not made."""
    return ev.Answer(client, {"type": "checkpoint.failed", "seq": seq, "error": error, "kind": kind})


def _age(seconds: float) -> str:
    """For people: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
