"""What the wrappers of one attempt on several nodes tell each other, through the run's own store.

Below the epoch's data lies ``gang/``: each other rank puts numbered reports there, of which the newest counts, rank 0 puts calls, which
the nodes answer, and its word that none of them is lost. An object is written once and never changed, as all in the store.

The store is what every wrapper of a run reaches in any case, without a port, an address, a right of Slurm's or an administrator;
``docs/how-it-works.md`` says why not by another way. Nothing here decides: `machine` and `following` do.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from job_wrapper.errors import Damaged, ObjectMissing, SpotburstError
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.identity import Identity
from job_wrapper.run.pulse import is_there
from job_wrapper.store.codec import seal, unseal
from job_wrapper.store.io_types import Kind, ObjectStore
from job_wrapper.store.log import RunLog
from job_wrapper.store.paths import gang_prefix

LISTEN_PAUSE = 2.0
"""Seconds between rank 0's looks, each one listing."""
ANSWER_PAUSE = 3.0
"""Seconds between another node's looks for a call: each is a get of what is mostly not there."""
CALL_PAUSE = 0.5
"""Seconds between rank 0's looks while it waits for answers."""
CALL_WAIT = 20.0
"""Seconds within which a node whose wrapper is alive answers a call: several of its looks."""
CALL_LONGEST = 120.0
"""Seconds after which a call is given up where the store does not answer: nobody is held to be lost then."""
RETRY = 1.0
LAST_WORD = 5.0
"""Seconds for which a wrapper that ends waits until the store has its last report."""

Emit = Callable[[ev.Event | Exception], None]
Stopped = Callable[[float], bool]
_REPORT = re.compile(r"([0-9]{6})-([0-9]{8})\.json\Z")


@dataclass(frozen=True, slots=True)
class Report:
    """All that a rank other than 0 has to say. ``ended``: its program's exit code as a shell has it, None while it runs.

    ``speaks``: it is the one of its node that tells of the node's notices and answers calls; ``answers``: the newest call.
    """

    rank: int
    node: str
    speaks: bool = False
    answers: int = 0
    notice: Notice | None = None
    ended: int | None = None
    reason: str = ""


class Board:
    """The objects. Every method raises the store's errors."""

    def __init__(self, store: ObjectStore, run: str, epoch: int) -> None:
        self._store, self._run, self._epoch = store, run, epoch
        self._prefix = gang_prefix(run, epoch)

    def tell(self, number: int, report: Report) -> None:
        """Put a rank's report ``number``, higher than its last."""
        self._store.put(f"{self._prefix}{report.rank:06d}-{number:08d}.json", seal("report", _fields(report)))

    def news(self, known: dict[int, int]) -> Iterator[Report]:
        """Each rank's newest report, of those whose number is higher than in ``known``, which is brought up to date one by one.

        One that is damaged is passed over: its rank will tell more, or not answer a call.
        """
        newest: dict[int, int] = {}
        for info in self._store.list(self._prefix):
            match = _REPORT.match(info.key.rpartition("/")[2])
            if match is not None:
                newest[int(match[1])] = max(int(match[2]), newest.get(int(match[1]), -1))
        for rank, number in sorted(newest.items()):
            if number <= known.get(rank, -1):
                continue
            key = f"{self._prefix}{rank:06d}-{number:08d}.json"
            try:
                report = _report(rank, unseal(self._store.get(key), "report", key))
            except (Damaged, ObjectMissing):
                report = None
            known[rank] = number
            if report is not None:
                yield report

    def call(self, number: int) -> None:
        """Ask all nodes whether they are there."""
        self._store.put(f"{self._prefix}call-{number:08d}.json", seal("call", {}))

    def called(self, number: int) -> bool:
        """Whether that call was made."""
        return is_there(self._store, f"{self._prefix}call-{number:08d}.json")

    def release(self) -> None:
        """Tell that none is lost: a program that failed has failed by itself."""
        self._store.put(f"{self._prefix}whole.json", seal("whole", {}))

    def released(self) -> bool:
        """Whether that was told."""
        return is_there(self._store, f"{self._prefix}whole.json")

    def head(self) -> ev.HeadSeen | ev.IsFenced:
        """How rank 0's attempt stands by the run's log."""
        last = RunLog(self._store, self._run).tail()
        if last is not None and last.epoch > self._epoch:
            return ev.IsFenced(last.epoch)
        ended = last is not None and last.kind is Kind.END
        leaving = last is not None and last.kind in (Kind.END, Kind.INTERRUPTED, Kind.SUSPENDED)
        return ev.HeadSeen(leaving, ended, not leaving and self.released())


def _fields(report: Report) -> dict[str, Any]:
    return {**asdict(report), "notice": None if report.notice is None else report.notice.to_json()}


def _report(rank: int, fields: dict[str, Any]) -> Report | None:
    """None for what is none, whoever wrote it."""
    notice, ended, answers = fields.get("notice"), fields.get("ended"), fields.get("answers")
    if not isinstance(answers, int) or not (ended is None or isinstance(ended, int)):
        return None
    try:
        heard = None if notice is None else Notice.from_json(notice)
    except (ValueError, TypeError):
        return None
    return Report(
        rank,
        str(fields.get("node"))[:255],
        fields.get("speaks") is True,
        answers,
        heard,
        ended,
        str(fields.get("reason"))[:100],
    )


class Gang:
    """The wrapper's part in it. ``act`` takes the actions that concern other ranks, from the loop; ``run`` is a thread's."""

    _thread: threading.Thread | None = None

    def act(self, action: ev.Action) -> None:
        """Do it soon. Never waits."""
        raise NotImplementedError

    def run(self, board: Board, emit: Emit, stopped: Stopped) -> None:
        """Until stopped; ``emit`` takes what is heard. May be called again."""
        raise NotImplementedError

    def start(self, board: Board, emit: Emit, stopped: Stopped) -> None:
        """Once the attempt has begun."""
        arguments = (board, emit, stopped)
        self._thread = threading.Thread(target=self._run_on, args=arguments, daemon=True, name="spotburst-gang")
        self._thread.start()

    def finish(self) -> None:
        """The wrapper ends, and ``stopped`` tells so already: its last report is waited for, but not for long."""

    def _run_on(self, board: Board, emit: Emit, stopped: Stopped) -> None:
        """A fault of our own must not make this node one that does not answer."""
        said = ""
        while not stopped(0.0):
            try:
                self.run(board, emit, stopped)
            except Exception as error:
                if said != str(error):
                    emit(error)
                said = str(error)
                stopped(RETRY)


class Telling(Gang):
    """A rank other than 0: keeps its newest report in the store, answers calls, looks at rank 0."""

    def __init__(self, identity: Identity, node: str) -> None:
        self._report = Report(identity.rank, node, identity.speaks)
        self._version = 1 if identity.speaks else 0
        """Of the report: those who speak introduce themselves."""
        self._told = 0
        """The version that is in the store."""
        self._number = 0
        self._call = 1
        """The call that is looked for."""
        self._look = False
        self._lock = threading.Lock()
        self._changed = threading.Event()

    def act(self, action: ev.Action) -> None:
        """``TellNotice``, ``TellEnded``, ``LookAtHead``."""
        with self._lock:
            if isinstance(action, ev.LookAtHead):
                self._look = True
            elif isinstance(action, ev.TellEnded) and (action.code or self._report.speaks):
                self._report = replace(self._report, ended=action.code, reason=action.reason)
                self._version += 1
            elif isinstance(action, ev.TellNotice) and self._report.speaks:  # else another of this node does
                self._report = replace(self._report, notice=action.notice)
                self._version += 1
        self._changed.set()

    def finish(self) -> None:
        """See ``Gang``."""
        if self._thread is not None and self._told != self._version:
            self._changed.set()
            self._thread.join(LAST_WORD)

    def run(self, board: Board, emit: Emit, stopped: Stopped) -> None:
        """Until stopped, and once more then. A store that is away is tried again for as long as that takes."""
        pause, ends = 0.0, False
        while not ends:
            self._changed.wait(pause)
            self._changed.clear()
            ends = stopped(0.0)
            with self._lock:
                report, version, look = self._report, self._version, self._look
            pause = ANSWER_PAUSE if report.speaks else 60.0
            try:
                if self._told != version:
                    # A number for each try: one whose answer was lost may have been read, and is not read again.
                    self._number += 1
                    board.tell(self._number, report)
                    self._told = version
                if look and not ends:
                    head = board.head()
                    self._look = False
                    emit(head)
                if report.speaks and not ends and board.called(self._call):
                    with self._lock:
                        self._report = replace(self._report, answers=self._call)
                        self._version += 1
                    self._call, pause = self._call + 1, 0.0
            except SpotburstError:
                pause = RETRY


class Listening(Gang):
    """Rank 0: hears what the other ranks tell, and calls them."""

    def __init__(self, others: int, steady: Callable[[], float] = time.monotonic) -> None:
        """``others``: how many other nodes the step runs on. ``steady`` tells how long something takes, in seconds."""
        self._others = others
        self._steady = steady
        self._changed = threading.Event()
        self._wants_call = self._wants_release = False
        self._known: dict[int, int] = {}
        self._speakers: dict[str, int] = {}
        """By node: the newest call that it has answered."""
        self._standing: dict[str, Notice] = {}
        self._ended: set[int] = set()
        self._over: dict[str, int] = {}
        """By node, where its speaker's program has ended: the exit code. Its wrapper may be gone after that."""
        self._released = False
        self._calls = 0

    def act(self, action: ev.Action) -> None:
        """``CallRoll``, ``Release``."""
        self._wants_call = self._wants_call or isinstance(action, ev.CallRoll)
        self._wants_release = self._wants_release or isinstance(action, ev.Release)
        self._changed.set()

    def run(self, board: Board, emit: Emit, stopped: Stopped) -> None:
        """Until stopped."""
        while not stopped(0.0):
            self._changed.wait(LISTEN_PAUSE)
            self._changed.clear()
            try:
                if self._wants_release:
                    board.release()
                    self._wants_release, self._released = False, True
                self._hear(board.news(self._known), emit)
            except SpotburstError:
                pass  # a store that does not answer says nothing; a call is given up in time
            if self._wants_call:
                self._wants_call = False
                emit(ev.RollCalled(self._roll_call(board, emit, stopped)))

    def _hear(self, reports: Iterable[Report], emit: Emit) -> None:
        for report in reports:
            if report.speaks:
                self._speakers[report.node] = report.answers
                standing = self._standing.pop(report.node, None)
                if report.notice is not None:
                    self._standing[report.node] = report.notice
                if report.notice is not None and report.notice != standing:
                    emit(ev.Heard(report.notice, report.node))
                elif report.notice is None and standing is not None:
                    emit(ev.Withdrawn(report.node))
            if report.speaks and report.ended is not None:
                self._over[report.node] = report.ended
            if report.ended and report.rank not in self._ended:
                self._ended.add(report.rank)
                emit(ev.PeerEnded(report.rank, report.node, report.ended, report.reason))

    def _roll_call(self, board: Board, emit: Emit, stopped: Stopped) -> tuple[str, ...]:
        """The nodes that do not answer; one that never spoke has no name here."""
        began = self._steady()
        until, called, number = began + CALL_WAIT, False, self._calls + 1
        while True:
            answered, looked = False, self._steady()
            try:
                if not called:
                    board.call(number)
                    # One that could not be made is no call: the others wait for this number.
                    called, self._calls, until = True, number, self._steady() + CALL_WAIT
                self._hear(board.news(self._known), emit)
                answered = True
            except SpotburstError:
                until = max(until, self._steady() + ANSWER_PAUSE)
            here = [node for node, answers in self._speakers.items() if answers >= number or self._may_be_gone(node)]
            now = self._steady()
            if len(here) >= self._others or now >= began + CALL_LONGEST or stopped(CALL_PAUSE):
                return ()
            if answered and looked >= until:  # what was put while hundreds of reports were read is not seen yet
                named = sorted(set(self._speakers) - set(here))
                unnamed = self._others - len(here) - len(named)
                return (*named, *["a node that never answered"] * unnamed)

    def _may_be_gone(self, node: str) -> bool:
        """Its wrapper has ended, or may have: its program was done, or had failed when no node was lost."""
        code = self._over.get(node)
        return code == 0 or (code is not None and self._released)
