"""Two real wrappers of one step, as if on two nodes: what one hears reaches the other, and neither takes the other's loss for its own failure."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.errors import ExitCode, StoreError
from job_wrapper.notice.types import Notice
from job_wrapper.run import events as ev
from job_wrapper.run.gang import Board, Listening, Report, Telling
from job_wrapper.run.identity import Identity
from job_wrapper.store import open_store
from job_wrapper.store.codec import seal
from job_wrapper.store.io_types import Kind
from tests.unit.run.conftest import PATIENT, Room

# A node that lives answers, however busy the machine is.
_CALL_WAIT = "gang.CALL_WAIT = 100.0; "
_QUICK = (
    f"{PATIENT}from job_wrapper.run import gang, peers; {_CALL_WAIT}gang.LAST_WORD = 100.0; "
    "gang.LISTEN_PAUSE = gang.ANSWER_PAUSE = gang.CALL_PAUSE = 0.1; peers.WHOLE_FOR = 0.1; "
)

COUNTING = """
    import json, pathlib, sys, time
    import job_wrapper
    file = pathlib.Path(job_wrapper.state_dir()) / "count"
    count = int(file.read_text()) if file.exists() else 0
    job_wrapper.on_request(lambda: file.write_text(str(count)))
    open("counts", "w").close()
    while count < 100000:
        count += 1
        time.sleep(0.01)
        job_wrapper.requested()
"""


class Two:
    """Rank 0 on node n1 and rank 1 on n2."""

    def __init__(self, first: Room, folder: Path) -> None:
        folder.mkdir()
        second = Room(folder)
        second.uri, second.fake, second.marked = first.uri, first.fake, True
        second.node["node"] = "n2"
        second.processes = first.processes
        self.rooms = [first, second]
        for room in self.rooms:
            room.wrapper = _QUICK + room.wrapper

    def start(self, rank: int, program: str | list[str], *options: str, **environ: str) -> subprocess.Popen[bytes]:
        where = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0"}
        step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_NUM_NODES": "2"}
        return self.rooms[rank].start(program, *options, **where, **step, **environ)

    def spoken(self) -> bool:
        """Rank 1's wrapper has introduced itself."""
        return any(Path(self.rooms[0].store).rglob("gang/000001-*.json"))


@pytest.fixture
def two(room: Room, tmp_path: Path) -> Two:
    return Two(room, tmp_path / "second")


def test_a_notice_on_the_other_node_makes_rank_0_commit_and_requeue(two: Two) -> None:
    first, second = two.rooms
    state = ("--state-dir", str(first.path / "state"))
    head = two.start(0, COUNTING, *state)
    other = two.start(1, ["sleep", "600"], *state)
    first.wait_for(lambda: (first.path / "counts").exists() and two.spoken())
    second.notice()
    code, _, said = first.end(head)
    assert code == ExitCode.REQUEUED, said
    assert "notice: aws reclaim (n2)" in said
    assert first.kinds() == ["claim", "commit", "interrupted"]
    assert first.log()[1].body["notice"]["source_id"] == first.log()[2].body["notice"]["source_id"]
    assert other.poll() is None, "the other rank stays until Slurm ends it"
    other.send_signal(signal.SIGTERM)  # as Slurm does once the job is requeued
    assert first.end(other)[0] == ExitCode.REQUEUED
    assert first.calls() == ["scontrol requeue 12"], "rank 0 alone has requeued"
    assert first.calls("sinfo") == ["sinfo -h -N -n n2 -o %N %T"], (
        "rank 0 alone asks: whether the node is drained, not whether it is lost"
    )


def test_a_notice_that_is_withdrawn_on_the_other_node_lets_both_go_on(two: Two) -> None:
    first, second = two.rooms
    # It never comes to a step's end; before it has asked to be told, its state is saved without it.
    slow = "import time, job_wrapper; job_wrapper.on_request(lambda: None); open('asked', 'x').close(); time.sleep(600)"
    head = two.start(0, slow, "--state-dir", str(first.path / "state"))
    other = two.start(1, ["sleep", "600"])
    first.wait_for(lambda: two.spoken() and (first.path / "asked").exists())
    second.notice()
    first.until_said(head, "notice: aws reclaim (n2)")
    second.notice_file.unlink()
    first.until_said(head, "the notice was withdrawn: going on")
    time.sleep(0.5)
    assert head.poll() is None and other.poll() is None


def test_a_lost_node_is_told_from_a_program_that_failed(two: Two) -> None:
    first, _ = two.rooms
    first.wrapper = first.wrapper.replace(_CALL_WAIT, "gang.CALL_WAIT = 3.0; ")
    fails = ["sh", "-c", f"until [ -e {first.path}/lost ]; do sleep 0.05; done; exit 7"]
    head = two.start(0, fails)
    other = two.start(1, ["sleep", "600"])
    first.wait_for(two.spoken)
    other.kill()
    (first.path / "lost").touch()
    code, _, said = first.end(head)
    assert code == ExitCode.REQUEUED, said
    assert "n2: lost" in said
    assert first.kinds() == ["claim", "interrupted"]
    assert first.log()[-1].body["reason"] == "NodeLost"
    assert first.calls() == ["scontrol requeue 12"]


def test_a_failure_of_all_ranks_is_the_programs_own(two: Two) -> None:
    first, _ = two.rooms
    fails = ["sh", "-c", f"until [ -e {first.path}/now ]; do sleep 0.05; done; exit 7"]
    head, other = (two.start(rank, fails, "--interval", "30s") for rank in (0, 1))
    first.wait_for(two.spoken)
    (first.path / "now").touch()
    (code, _, said), (others, _, heard) = first.end(head), first.end(other)
    assert (code, others) == (7, 7)
    assert first.kinds() == ["claim", "end"]
    assert first.calls() == []
    assert [text.count("is for trials only") for text in (said, heard)] == [1, 0], "rank 0 saves, and says it for all"


def test_one_rank_that_fails_while_the_step_is_ended_for_it(two: Two) -> None:
    """As with ``srun --kill-on-bad-exit``: the failed task ends first, then the step is signalled, and the job goes on by Slurm's records."""
    first, _ = two.rooms
    head = two.start(0, ["sleep", "600"])
    other = two.start(1, ["sh", "-c", f"until [ -e {first.path}/now ]; do sleep 0.05; done; exit 7"])
    first.wait_for(two.spoken)
    (first.path / "now").touch()
    assert first.end(other)[0] == 7, "released once no node is lost"
    head.send_signal(signal.SIGTERM)
    assert first.end(head)[0] == 7
    assert first.kinds() == ["claim", "end"]
    assert first.log()[-1].body["exit_code"] == 7


@pytest.mark.parametrize("code", [0, 7], ids=["is done", "has failed, which was no node's loss"])
def test_a_node_whose_program_has_ended_is_not_taken_for_lost(two: Two, code: int) -> None:
    first, _ = two.rooms
    head = two.start(0, ["sh", "-c", f"until [ -e {first.path}/late ]; do sleep 0.05; done; exit 5"])
    other = two.start(1, ["sh", "-c", f"until [ -e {first.path}/now ]; do sleep 0.05; done; exit {code}"])
    first.wait_for(two.spoken)
    (first.path / "now").touch()
    assert first.end(other)[0] == code
    (first.path / "late").touch()
    assert first.end(head)[0] == 5
    assert first.kinds() == ["claim", "end"], "what fails by itself is not tried again"
    assert first.calls() == []


def test_rank_0_killed_leaves_the_requeue_to_the_other_shortly_before_the_deadline(two: Two) -> None:
    first, second = two.rooms
    head, other = two.start(0, ["sleep", "600"]), two.start(1, ["sleep", "600"])
    first.wait_for(two.spoken)
    head.kill()
    second.notice(seconds=6.0)
    assert first.end(other)[0] == ExitCode.REQUEUED
    assert first.calls() == ["scontrol requeue 12"]


# The protocol itself, step by step


WHO = Identity("c", "12", "12", 0, 0, 1, 2, 2, step_nodes=2, node_index=1)
NOTICE = Notice("aws", "reclaim", "x", 1000.0, 1120.0)


class Unsure:
    """A store of which every second call fails, as the dice fall, before or after it is done."""

    def __init__(self, uri: str) -> None:
        self._store = open_store(uri)
        self.uri = self._store.uri
        self._dice = random.Random(1)

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if self._dice.random() < 0.25:
                raise StoreError("away")
            result = getattr(self._store, name)(*arguments)
            result = list(result) if name == "list" else result
            if self._dice.random() < 0.25:
                raise StoreError("no answer")
            return result

        return call


def test_each_word_arrives_over_a_store_that_fails_every_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (
        ("LISTEN_PAUSE", 0.02),
        ("ANSWER_PAUSE", 0.02),
        ("CALL_PAUSE", 0.02),
        ("RETRY", 0.02),
        ("CALL_WAIT", 100.0),
    ):
        monkeypatch.setattr(f"job_wrapper.run.gang.{name}", seconds)
    board = Board(Unsure(f"file://{tmp_path}"), "c/12/main", 1)  # type: ignore[arg-type]
    heard: list[ev.Event | Exception] = []
    stopping = [False]

    def stopped(seconds: float) -> bool:
        time.sleep(seconds)
        return stopping[0]

    telling, listening = Telling(WHO, "n2"), Listening(1)
    telling.start(board, heard.append, stopped)
    listening.start(board, heard.append, stopped)
    try:
        telling.act(ev.TellNotice(NOTICE))
        Room.wait_for(lambda: ev.Heard(NOTICE, "n2") in heard)
        listening.act(ev.CallRoll())
        Room.wait_for(lambda: ev.RollCalled(()) in heard)
        telling.act(ev.TellNotice(None))
        Room.wait_for(lambda: ev.Withdrawn("n2") in heard)
        telling.act(ev.TellEnded(7, "ProgramFailed"))
        Room.wait_for(lambda: ev.PeerEnded(1, "n2", 7, "ProgramFailed") in heard)
        listening.act(ev.Release())
        Room.wait_for(lambda: [telling.act(ev.LookAtHead())] and ev.HeadSeen(released=True) in heard)
    finally:
        stopping[0] = True
    assert heard.count(ev.Heard(NOTICE, "n2")) == 1
    assert heard.count(ev.PeerEnded(1, "n2", 7, "ProgramFailed")) == 1


def test_what_is_told_after_a_word_whose_answer_was_lost_is_heard(tmp_path: Path) -> None:
    """Rank 0 has read that word, and reads no number twice."""
    known: dict[int, int] = {}
    read: list[Report] = []

    class Lossy(Board):
        def tell(self, number: int, report: Report) -> None:
            super().tell(number, report)
            read.extend(self.news(known))
            if len(read) == 1:
                telling.act(ev.TellNotice(NOTICE))
                raise StoreError("no answer")

    telling = Telling(WHO, "n2")
    telling.start(Lossy(open_store(f"file://{tmp_path}"), "c/12/main", 1), [].append, lambda _: len(read) > 1)
    Room.wait_for(lambda: len(read) > 1)
    assert [report.notice for report in read] == [None, NOTICE]


class Fault(Board):
    """What a store does that is away, or worse."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        if name in ("tell", "news", "call", "called", "release", "head"):
            raise object.__getattribute__(self, "error")
        return object.__getattribute__(self, name)


def test_a_call_is_given_up_where_the_store_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LISTEN_PAUSE", "CALL_PAUSE"):
        monkeypatch.setattr(f"job_wrapper.run.gang.{name}", 0.01)
    monkeypatch.setattr("job_wrapper.run.gang.CALL_LONGEST", 0.1)
    heard: list[ev.Event | Exception] = []
    listening = Listening(1)
    listening.act(ev.CallRoll())
    listening.start(Fault(StoreError("away")), heard.append, lambda seconds: [time.sleep(seconds)] and bool(heard))
    Room.wait_for(lambda: heard == [ev.RollCalled(())])


def test_a_node_that_answers_while_many_reports_are_read_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("job_wrapper.run.gang.CALL_PAUSE", 0.0)
    now = [1000.0]

    looks = [[Report(rank, "n2", ended=1) for rank in range(8, 16)], [Report(1, "n2", speaks=True, answers=1)]]

    class Slow(Board):
        def __init__(self) -> None:
            """No store."""

        def call(self, number: int) -> None:
            """It is made."""

        def news(self, known: dict[int, int]) -> Iterator[Report]:
            for report in looks.pop(0):
                now[0] += 10.0
                yield report

    assert Listening(1, lambda: now[0])._roll_call(Slow(), lambda _: None, lambda _: False) == ()


def test_a_fault_of_our_own_is_said_once_and_the_node_still_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("job_wrapper.run.gang.RETRY", 0.01)
    heard: list[ev.Event | Exception] = []
    board = Board(open_store(f"file://{tmp_path}"), "c/12/main", 1)
    broken = [KeyError("what?")] * 3

    class Broken(Board):
        def tell(self, number: int, report: Report) -> None:
            if broken:
                raise broken.pop()
            super().tell(number, report)

    stopping: list[bool] = []
    telling = Telling(WHO, "n2")
    telling.start(
        Broken(open_store(f"file://{tmp_path}"), "c/12/main", 1),
        heard.append,
        lambda seconds: [time.sleep(seconds)] and bool(stopping),
    )
    Room.wait_for(lambda: list(board.news({})))
    stopping.append(True)
    telling.finish()
    assert [str(error) for error in heard] == ["'what?'"]


@pytest.mark.parametrize(
    "fields",
    [
        {"answers": "many"},
        {"answers": 0, "ended": "yes"},
        {"answers": 0, "notice": "{"},
        {"answers": 0, "notice": {"kind": "reclaim"}},
        {"answers": 0, "notice": json.dumps({"kind": "flood"})},
    ],
)
def test_a_report_that_makes_no_sense_is_passed_over_and_the_next_one_counts(
    fields: dict[str, object], tmp_path: Path
) -> None:
    board = Board(open_store(f"file://{tmp_path}"), "c/12/main", 1)
    board.tell(0, Report(1, "n2", speaks=True))
    (file,) = tmp_path.rglob("gang/*.json")
    file.write_bytes(seal("report", fields))
    file.with_name("nonsense.json").write_bytes(b"")
    known: dict[int, int] = {}
    assert list(board.news(known)) == []
    board.tell(1, Report(1, "n2", speaks=True, notice=NOTICE))
    assert [report.notice for report in board.news(known)] == [NOTICE]
    assert list(board.news(known)) == []


def test_rank_0s_word_is_found_in_the_log_by_epoch(two: Two) -> None:
    first, _ = two.rooms
    two.start(0, ["true"]).wait()
    store = open_store(first.uri, prove=False)
    assert first.log()[-1].kind is Kind.END
    assert Board(store, "c/12/main", 1).head() == ev.HeadSeen(leaving=True, ended=True)
    assert Board(store, "c/12/main", 0).head() == ev.IsFenced(1)
