"""The log's protocol under every interleaving that hypothesis thinks of: writers that stop between any two requests, crash, come back
late; answers that get lost; requests that land after they were given up; listings and reads that lag.

Each writer is the real ``RunLog`` and ``Claim`` in a thread of its own that stops before every request to the store. Which one goes
on, and what becomes of its request, are the test's choices; time does not pass.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from job_wrapper.errors import Fenced, ObjectMissing, RunHeld, SpotburstError, StoreError
from job_wrapper.store.checkpoint_codec import decode_manifest, encode_manifest
from job_wrapper.store.checksum import checksum
from job_wrapper.store.claim import Claim
from job_wrapper.store.codec import decode_entry
from job_wrapper.store.decided_put import Patience
from job_wrapper.store.io_types import Entry, Kind, Manifest, ObjectInfo, ObjectRef, Put, Summary, Writer
from job_wrapper.store.log import RunFinished, RunLog
from job_wrapper.store.paths import log_key, log_prefix
from job_wrapper.store.retention import collect
from tests.store.checkpoints import RUN
from tests.store.faulty import Crash, MemoryStore
from tests.store.history import check_log

OUTCOMES = [*["done"] * 8, "failed", "lost", "late", "told it exists", "stale", "crash before", "crash after"]
FATES = st.lists(st.sampled_from([*OUTCOMES, "pause", "pause"]), max_size=6)
"""Of the next requests of one writer; those after are done."""
KEEP = 2
EXAMPLES = int(os.environ.get("SPOTBURST_LOG_HISTORIES", "150"))
"""Histories tried; each has up to 8 writers."""


class Steps:
    """One writer's thread, which runs only while the test lets it, from one request to the next."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.waiting = ""
        self._outcome = ""
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.done = False
        self.error: BaseException | None = None

        def run() -> None:
            try:
                act()
            except Crash:
                pass
            except BaseException as error:
                self.error = error
            self.done = True
            self._stopped.release()

        self._thread = threading.Thread(target=run, daemon=True)

    def begin(self) -> None:
        """In the test's thread: run to the first request."""
        self._thread.start()
        self._stopped.acquire()

    def ask(self, request: str) -> str:
        """In the writer's thread: wait for what is to become of ``request``."""
        self.waiting = request
        self._stopped.release()
        self._go.acquire()
        return self._outcome

    def go(self, outcome: str) -> None:
        """In the test's thread: let it go on to its next request, or its end."""
        self._outcome = outcome
        self._go.release()
        self._stopped.acquire()
        if self.error is not None:
            raise self.error


class SteppedStore(MemoryStore):
    """One writer's view of the shared store."""

    def __init__(self, machine: LogMachine) -> None:
        super().__init__()
        self.objects = machine.objects
        self._machine = machine
        self.steps: Steps | None = None
        self.dead = False

    def _ask(self, request: str) -> str:
        assert self.steps is not None
        outcome = self.steps.ask(request)
        if outcome == "crash before":
            raise Crash
        return outcome

    def put_if_absent(self, key: str, data: bytes) -> Put:
        outcome = self._ask("put")
        if outcome in ("failed", "stale"):
            raise StoreError("failed")
        if outcome == "late":
            self._machine.late.append((key, data))
            raise StoreError("no answer, and not there yet")
        result = super().put_if_absent(key, data)
        if outcome == "lost":
            raise StoreError("no answer")
        if outcome == "crash after":
            raise Crash
        return Put.EXISTS if outcome == "told it exists" else result

    def get(self, key: str) -> bytes:
        outcome = self._ask("get")
        if outcome == "stale":
            raise ObjectMissing("not shown yet")
        if outcome in ("failed", "lost", "late"):
            raise StoreError("failed")
        if outcome == "crash after":
            raise Crash
        return super().get(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        outcome = self._ask("list")
        found = list(super().list(prefix))
        if outcome == "stale":
            return iter(found[:-1])
        if outcome in ("failed", "lost", "late"):
            raise StoreError("failed")
        if outcome == "crash after":
            raise Crash
        return iter(found)

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key, data)  # the pointer to the run, and data that only this writer writes

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            assert not key.startswith(log_prefix(RUN)), "an entry of the log is deleted"
            outcome = self._ask("delete")
            if outcome not in ("failed", "late", "stale"):
                super().delete([key])
            if outcome == "crash after":
                raise Crash
            if outcome != "done":
                raise StoreError("failed")


class Attempt:
    """One writer."""

    def __init__(self, machine: LogMachine, writer: Writer) -> None:
        self.machine, self.writer = machine, writer
        self.store = SteppedStore(machine)
        now = iter(range(1 << 30))
        patience = Patience(seconds=2, first=0.0, now=lambda: float(next(now)), sleep=lambda _: None)
        # One reader: requests of several threads at once have no order, and the history could not be played again.
        self.log = RunLog(self.store, RUN, clock=lambda: machine.now, patience=patience, readers=1)
        self.claim: Claim | None = None
        self.steps: Steps | None = None
        self.crashed = False
        self.fenced = False

    def busy(self) -> bool:
        return self.steps is not None and not self.steps.done

    def start(self, act: Callable[[], Any]) -> None:
        def guarded() -> None:
            try:
                act()
            except Fenced:
                self.fenced = True
                assert self.claim is not None
                epoch = max(e.epoch for e in self.machine.entries())
                assert epoch > self.claim.epoch, "fenced, but by no one"
            except (RunHeld, RunFinished):
                self.crashed = True
                newest = self.machine.entries()[-1]
                assert newest.kind is not Kind.CLAIM or newest.writer != self.writer, "refused by its own claim"
            except StoreError:
                pass
            except SpotburstError:
                # Its own end, given up for lack of an answer, stands in the log after all: nothing may follow it.
                assert self.claim is not None and self.claim.entry.kind is Kind.END
                assert self.machine.entries()[self.claim.entry.seq] == self.claim.entry
            except Crash:
                self.crashed = True
                raise

        self.steps = self.store.steps = Steps(guarded)
        self.steps.begin()
        if self.steps.error is not None:
            raise self.steps.error

    def do_claim(self) -> None:
        claim = self.log.claim(self.writer, keep=KEEP)
        self.claim = claim
        self.machine.acknowledged.append(claim.entry)

    def do(self, name: str, number: int) -> None:
        claim = self.claim
        assert claim is not None
        if name == "check":
            claim.check()
            return
        if name == "collect":
            collect(claim)
            return
        entry = {
            "commit": lambda: claim.commit(self._save(claim, number), step=number),
            "suspended": claim.suspended,
            "restore_failed": lambda: claim.restore_failed(claim.entry.summary.commits[-1].seq, "bad"),
            "interrupted": lambda: claim.interrupted("reclaim"),
            "end": lambda: claim.end(number % 2, "ended", keep=None if number % 2 else 1),
        }[name]()
        self.machine.acknowledged.append(entry)

    def _save(self, claim: Claim, number: int) -> ObjectRef:
        """A pack, and a manifest that names it and one of the commit before it."""
        pack, key = (f"{claim.data_prefix}/{number}{end}" for end in (".pack", ".json"))
        last = claim.entry.summary.commits[-1:]
        known = self.machine.objects.get(last[0].manifest.key) if last else None
        base = decode_manifest(known, "x").packs[-1:] if known else ()
        manifest = encode_manifest(Manifest(RUN, claim.epoch, number, {}, (*base, pack)))
        self.store.put(pack, b"x")
        self.store.put(key, manifest)
        return ObjectRef(key, len(manifest), checksum(manifest))


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.acknowledged: list[Entry] = []
        self.attempts: list[Attempt] = []
        self.number = 0
        self.read: list[tuple[str, bytes, Entry]] = []
        self.checked: tuple[int, ...] = ()
        self.now = 1.0
        """All clocks. They may jump: no decision looks at them."""

    def entries(self) -> list[Entry]:
        """The whole log. Each entry is decoded once, and must stay what it was."""
        while (key := log_key(RUN, len(self.read))) in self.objects:
            data = self.objects[key]
            self.read.append((key, data, decode_entry(data, key, len(self.read))))
        assert all(self.objects[key] is data for key, data, _ in self.read)
        return [entry for _, _, entry in self.read]

    @precondition(lambda self: len(self._idle()) + len(self._busy()) < 5)
    @rule(
        job=st.sampled_from(["12", "12", "12", "13"]),
        newer=st.sampled_from([1, 1, 1, 0, -1]),
        step=st.integers(0, 1),
        fates=FATES,
    )
    def start_attempt(self, job: str, newer: int, step: int, fates: list[str]) -> None:
        self.number += 1
        restart = max(
            0, newer + max((a.writer.restart_count for a in self.attempts if a.writer.job_id == job), default=-1)
        )
        attempt = Attempt(self, Writer("c", job, restart, step, "h", f"n{self.number}"))
        self.attempts.append(attempt)
        attempt.start(attempt.do_claim)
        self._drive(attempt, fates)

    def _idle(self) -> list[Attempt]:
        return [a for a in self.attempts if not a.busy() and not a.crashed]

    def _busy(self) -> list[Attempt]:
        return [a for a in self.attempts if a.busy()]

    @precondition(lambda self: any(a.claim and a.claim.entry.kind is not Kind.END for a in self._idle()))
    @rule(
        data=st.data(),
        name=st.sampled_from(
            [*["commit"] * 5, *["collect"] * 2, "restore_failed", "interrupted", "suspended", "end", "check"]
        ),
        fates=FATES,
    )
    def act(self, data: st.DataObject, name: str, fates: list[str]) -> None:
        able = [a for a in self._idle() if a.claim and a.claim.entry.kind is not Kind.END]
        attempt = data.draw(st.sampled_from(able))
        assert attempt.claim is not None
        if name == "restore_failed" and not attempt.claim.entry.summary.commits:
            name = "commit"
        self.number += 1
        number = self.number
        attempt.start(lambda: attempt.do(name, number))
        self._drive(attempt, fates)

    @precondition(lambda self: any(a.claim for a in self._idle()))
    @rule(data=st.data(), fates=FATES)
    def collect_after_the_end_too(self, data: st.DataObject, fates: list[str]) -> None:
        attempt = data.draw(st.sampled_from([a for a in self._idle() if a.claim]))
        attempt.start(lambda: attempt.do("collect", 0))
        self._drive(attempt, fates)

    @rule(years=st.sampled_from([-50, -1, 0, 1, 300]))
    def clocks_jump(self, years: int) -> None:
        self.now = max(0.0, self.now + years * 3.15e7)

    @precondition(lambda self: any(a.claim is None for a in self._idle()))
    @rule(data=st.data())
    def claim_again(self, data: st.DataObject) -> None:
        """The claim failed for lack of an answer, and the same process tries again."""
        attempt = data.draw(st.sampled_from([a for a in self._idle() if a.claim is None]))
        attempt.start(attempt.do_claim)
        self._drive(attempt, [])

    @precondition(lambda self: self._busy())
    @rule(data=st.data(), fates=FATES)
    def go_on(self, data: st.DataObject, fates: list[str]) -> None:
        self._drive(data.draw(st.sampled_from(self._busy())), fates)

    def _drive(self, attempt: Attempt, fates: list[str]) -> None:
        """Let it go on to its end or to a pause: first with these fates of its requests, then undisturbed."""
        for fate in [*fates, *["done"] * 50]:
            if fate == "pause" or not attempt.busy():
                return
            assert attempt.steps is not None
            attempt.steps.go(fate)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """A request that its writer has given up reaches the store now."""
        key, body = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        self.objects.setdefault(key, body)

    @invariant()
    def log_is_right(self) -> None:
        size = (len(self.objects), len(self.acknowledged))
        if size != self.checked:
            entries = self.entries()
            check_log(entries, self.acknowledged, KEEP)
            if entries:
                self._all_is_there(entries[-1].summary)
            self.checked = size

    def _all_is_there(self, summary: Summary) -> None:
        """Whatever was collected by whomever: what the next attempt may restore is whole."""
        for commit in summary.commits:
            manifest = self.objects.get(commit.manifest.key)
            assert manifest is not None and checksum(manifest) == commit.manifest.checksum, "a manifest is gone"
            assert set(decode_manifest(manifest, "x").packs) <= set(self.objects), "a pack is gone"

    def teardown(self) -> None:
        for attempt in self._busy():
            while attempt.busy():
                assert attempt.steps is not None
                attempt.steps.go("crash before")


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
