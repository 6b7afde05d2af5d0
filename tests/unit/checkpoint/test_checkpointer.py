"""The save boundary: what is saved, when, and what the program is told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from job_wrapper.checkpoint import Checkpointer, DirectCommitter, UnsupportedState
from job_wrapper.checkpoint.checkpointer import PART
from job_wrapper.checkpoint.loading import read_state
from job_wrapper.checkpoint.saver import settle
from job_wrapper.client import Committed, Request
from job_wrapper.errors import CheckpointFailed, ExitCode
from job_wrapper.store import ObjectRef, verify_checkpoint
from tests.unit.checkpoint.training import assert_equal, open_run


class Gate:
    """A store whose pack writes wait until the gate is open. The rest goes to the real one."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.open = threading.Event()
        self.reached = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def open_write(self, key: str) -> Any:
        self.reached.set()
        assert self.open.wait(120)
        return self.store.open_write(key)


class Recorder(DirectCommitter):
    """Notes what was committed: (step, seq)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commits: list[tuple[int, int | None]] = []

    def commit(self, step: int, parts: Any, seq: int | None) -> Committed:
        outcome = super().commit(step, parts, seq)
        self.commits.append((step, seq))
        return outcome


@pytest.fixture
def committer(tmp_path: Path) -> Recorder:
    return Recorder.open(f"file://{tmp_path}", "test")  # type: ignore[return-value]


def gated(committer: DirectCommitter) -> Gate:
    gate = Gate(committer.store)
    committer.store = gate  # type: ignore[assignment]
    return gate


def settled(checkpoint: Checkpointer) -> None:
    """Until no save is in flight, and its thread has said so to the next step: that is the last thing it does."""
    until(lambda: all(thread.name != "spotburst-save" for thread in threading.enumerate()))
    assert checkpoint._saving is None


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


def stored(committer: DirectCommitter, name: str) -> dict[int, Any]:
    """The value of one part of the state in each commit that is kept, by step."""
    found = {}
    for commit in committer._claim.entry.summary.commits:
        tree = read_state(committer.store, commit.manifest, PART).tree
        found[tree["completed"]] = tree["state"][name]
    return found


def test_without_a_place_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTBURST_SOCKET", raising=False)
    monkeypatch.delenv("SPOTBURST_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    with Checkpointer(log=[1], config={"lr": 1}) as checkpoint:
        checkpoint.save()
        for _ in range(3):
            checkpoint.step()
        assert (checkpoint.completed, checkpoint.restored, checkpoint.active) == (3, False, False)
        assert checkpoint.tracker_id() == checkpoint.tracker_id()
    assert set(threading.enumerate()) <= before
    assert list(tmp_path.iterdir()) == []


def test_the_final_state_is_in_the_last_commit(committer: Recorder) -> None:
    x = torch.zeros(3)
    with Checkpointer(x=x, committer=committer) as checkpoint:
        for _ in range(4):
            x += 1
            checkpoint.step()
    assert committer.commits == [(4, None)]
    assert stored(committer, "x")[4].eq(4).all()


def test_what_changes_after_the_step_is_not_in_its_checkpoint(committer: Recorder) -> None:
    gate = gated(committer)
    x, table = torch.arange(100_000.0), {"a": [1]}
    with Checkpointer(x=x, table=table, committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        assert gate.reached.wait(120)
        x.mul_(-1)
        table["a"].append(2)
        table["b"] = [3]
        gate.open.set()
        settled(checkpoint)
        assert stored(committer, "x")[1].equal(torch.arange(100_000.0))
        assert stored(committer, "table")[1] == {"a": [1]}


def test_training_goes_on_while_a_save_is_in_flight_and_a_second_waits(committer: Recorder) -> None:
    gate = gated(committer)
    x = torch.zeros(10)
    with Checkpointer(x=x, committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        assert gate.reached.wait(120)
        committer.ask()
        for _ in range(5):
            x += 1
            checkpoint.step()
        assert committer.commits == []
        gate.open.set()
        settled(checkpoint)
        x += 1
        checkpoint.step()  # takes up the second request, with the state as it is now
        settled(checkpoint)
        assert committer.commits == [(1, 1), (7, 2)]
        values = stored(committer, "x")
        assert (values[1].tolist(), values[7].tolist()) == ([0.0] * 10, [6.0] * 10)


def test_an_urgent_one_waits_for_the_one_in_flight_and_is_committed_before_the_step_returns(
    committer: Recorder,
) -> None:
    gate = gated(committer)
    with Checkpointer(x=torch.zeros(10), committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        assert gate.reached.wait(120)
        committer.ask(urgent=True)
        threading.Timer(0.05, gate.open.set).start()
        checkpoint.step()
        assert committer.commits == [(1, 1), (2, 2)]


def test_an_urgent_one_replaces_the_one_in_flight_when_there_is_time_for_one_only(
    committer: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(committer)
    with Checkpointer(x=torch.zeros(1000), y=torch.zeros(1000), committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        assert gate.reached.wait(120)
        saving = checkpoint._saving
        assert saving is not None
        saving.written, saving._started = saving.total // 2, time.monotonic() - 100  # 100 s for the first half
        committer._request = Request(2, True, time.time() + 250, "reclaim", time.time())
        committer.attention = True
        give_up = saving.give_up
        monkeypatch.setattr(
            saving, "give_up", lambda: (give_up(), gate.open.set())
        )  # not before: it would be committed
        checkpoint.step()
        assert committer.commits == [(2, 2)]


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "left", "expected"),
    [
        (50, 100, 10, None, "wait"),  # nobody knows how long there is
        (0, 100, 10, 5, "wait"),  # nor how fast it goes
        (50, 100, 10, 31, "wait"),  # 10 s for the rest, 20 s for a whole one
        (50, 100, 10, 29, "replace"),  # not both
        (50, 100, 10, 19, "wait"),  # not even a whole one: the rest of the older may come through
        (90, 100, 9, 10.5, "replace"),
    ],
)
def test_wait_or_replace(done: int, total: int, elapsed: float, left: float | None, expected: str) -> None:
    assert settle(done, total, elapsed, left) == expected


def test_stop_ends_the_program_after_the_commit(committer: Recorder) -> None:
    with pytest.raises(SystemExit) as stop, Checkpointer(x=torch.zeros(1), committer=committer) as checkpoint:
        checkpoint.step()
        committer.ask(urgent=True, stop=True)
        checkpoint.step()
        raise AssertionError("it trained on")
    assert stop.value.code == ExitCode.REQUEUED
    assert committer.commits == [(2, 1)]


def test_stop_while_the_last_save_is_made(committer: Recorder) -> None:
    with pytest.raises(SystemExit) as stop, Checkpointer(x=torch.zeros(1), committer=committer) as checkpoint:
        checkpoint.step()
        committer.ask(urgent=True, stop=True)
    assert stop.value.code == ExitCode.REQUEUED
    assert committer.commits == [(1, 1)]


def test_an_error_of_the_program_saves_nothing_more(committer: Recorder) -> None:
    gate = gated(committer)
    with pytest.raises(ZeroDivisionError), Checkpointer(x=torch.zeros(1), committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        checkpoint.step()
        gate.open.set()
        raise ZeroDivisionError  # in the middle of step 3
    assert committer.commits == [(1, 1)]  # the one in flight is finished


def obstruct(committer: DirectCommitter) -> Path:
    """A file where the folder for this epoch's data must be."""
    place = Path(committer.uri.removeprefix("file://")) / committer.data_prefix
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("in the way")
    return place


def test_a_failed_background_save_raises_at_the_next_step_and_the_one_after_works(committer: Recorder) -> None:
    obstacle = obstruct(committer)
    x = torch.zeros(10)
    with Checkpointer(x=x, committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        settled(checkpoint)
        with pytest.raises(CheckpointFailed, match="the one before it stands"):
            checkpoint.step()
        obstacle.unlink()
        committer.ask()
        x += 1
        checkpoint.step()
        settled(checkpoint)
        assert committer.commits == [(3, 2)]
        assert stored(committer, "x")[3].eq(1).all()


@pytest.mark.parametrize("urgent", [True, False])
def test_a_failed_last_save_is_not_hidden(committer: Recorder, urgent: bool) -> None:
    obstruct(committer)
    with pytest.raises(CheckpointFailed), Checkpointer(x=torch.zeros(10), committer=committer) as checkpoint:
        if urgent:
            committer.ask(urgent=True)
        checkpoint.step()


def test_the_arena_is_allocated_once(committer: Recorder) -> None:
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.Adam([weight])
    with Checkpointer(optimizer=optimizer, committer=committer) as checkpoint:
        for _ in range(8):
            weight.sum().backward()
            optimizer.step()
            checkpoint.step()
            until(lambda: checkpoint._arena.capacity)  # from the first step on, before anything is asked
            committer.ask()
            checkpoint.step()
            settled(checkpoint)
    assert len(committer.commits) >= 8
    assert checkpoint._arena.allocations == 1


def test_state_that_grows_is_saved_all_the_same(committer: Recorder) -> None:
    state: dict[str, torch.Tensor] = {}
    with Checkpointer(state=state, committer=committer) as checkpoint:
        for n in range(3):
            state[str(n)] = torch.full((1 << 20,), float(n))
            committer.ask()
            checkpoint.step()
            settled(checkpoint)
        assert {n: len(tree) for n, tree in stored(committer, "state").items()} == {1: 1, 2: 2, 3: 3}


def test_state_that_becomes_unsupported_is_named(committer: Recorder) -> None:
    table: dict[str, Any] = {}
    with (
        pytest.raises(UnsupportedState, match=r"state\.table\.'?x"),
        Checkpointer(table=table, committer=committer) as checkpoint,
    ):
        checkpoint.step()
        table["x"] = object()
        committer.ask()
        checkpoint.step()
    assert committer.commits == []


def test_unchanged_tensors_are_not_written_again(committer: Recorder) -> None:
    frozen, trained = torch.randn(1 << 20), torch.randn(1000)
    written = []
    with Checkpointer(frozen=frozen, trained=trained, committer=committer) as checkpoint:
        for _ in range(3):
            trained += 1
            committer.ask()
            checkpoint.step()
            settled(checkpoint)
            root = Path(committer.uri.removeprefix("file://"))
            written.append(sum(f.stat().st_size for f in root.rglob("*.pack")))
    assert written[0] > 4 << 20
    assert written[2] - written[0] < 100_000


@pytest.mark.parametrize("harm", [Path.unlink, lambda pack: os.truncate(pack, 100)])
@pytest.mark.parametrize("staging", [True, False])
def test_what_is_unchanged_but_lost_from_the_store_is_written_again(
    committer: Recorder, harm: Callable[[Path], None], staging: bool
) -> None:
    """The program has it all: a rule that deletes old objects must not end the run."""
    frozen, trained = (
        {"large": torch.randn(1 << 20), **{str(n): torch.randn(1000) for n in range(200)}},
        torch.randn(1000),
    )
    with Checkpointer(frozen=frozen, trained=trained, committer=committer, staging=staging) as checkpoint:
        for step in range(3):
            trained += 1
            committer.ask()
            checkpoint.step()
            settled(checkpoint)
            if not step:
                for pack in Path(committer.uri.removeprefix("file://")).rglob("*.pack"):
                    harm(pack)
    assert [step for step, _ in committer.commits] == [1, 2, 3]
    newest = committer._claim.entry.summary.commits[-1]
    verify_checkpoint(committer.store, newest.manifest)
    assert_equal(read_state(committer.store, newest.manifest, PART).tree["state"]["frozen"], frozen)


def test_the_trackers_id_is_the_same_in_all_attempts(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        # The first attempt is fenced by the second before it commits.
        checkpoint = Checkpointer(x=[1], committer=open_run(tmp_path))
        ids.append(checkpoint.tracker_id())
    for _ in range(2):
        with Checkpointer(x=[1], committer=open_run(tmp_path)) as checkpoint:
            ids.append(checkpoint.tracker_id())
            checkpoint.step()
    assert len(set(ids)) == 1
    assert Checkpointer(x=[1], committer=open_run(tmp_path, "other")).tracker_id() != ids[0]


def test_save_asks_for_the_next_step(committer: Recorder) -> None:
    with Checkpointer(x=[1], committer=committer) as checkpoint:
        checkpoint.step()
        checkpoint.save()
        checkpoint.step()
        settled(checkpoint)
        assert committer.commits == [(2, None)]
        checkpoint.step()
    assert committer.commits == [(2, None), (3, None)]


def test_an_interval_makes_its_own_requests(tmp_path: Path) -> None:
    committer = open_run(tmp_path, interval=0.01)
    with Checkpointer(x=[1], committer=committer) as checkpoint:

        def twice() -> bool:
            checkpoint.step()
            return len(committer._claim.entry.summary.commits) >= 2

        until(twice)


def test_a_foreign_part_is_passed_over(committer: Recorder) -> None:
    """A newer checkpoint without this program's state (state directories only) does not stand in the way."""
    from job_wrapper.store import PartWriter

    with Checkpointer(x=[1], committer=committer) as checkpoint:
        checkpoint.step()
    writer = PartWriter(committer.store, committer.data_prefix, "files")
    reference: ObjectRef = writer.finish()
    committer.commit(9, {"files": reference}, None)
    root = Path(committer.uri.removeprefix("file://"))
    with Checkpointer(x=[2], committer=open_run(root)) as checkpoint:
        assert (checkpoint.restored, checkpoint.completed) == (True, 1)
