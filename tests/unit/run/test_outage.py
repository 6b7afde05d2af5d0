"""A store that goes away, under a real wrapper: training goes on, nothing acknowledged is lost, no run is ended by it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import (
    CheckpointFailed,
    CheckpointTooLarge,
    Damaged,
    ExitCode,
    Fenced,
    NewerFormat,
    ObjectMissing,
    StoreAway,
    StoreError,
    StoreRefused,
    kind_of,
    may_pass,
)
from tests.fixtures.unmet import unmet

if TYPE_CHECKING:
    from conftest import Room

TRAINING = """
    import pathlib, time, torch
    from job_wrapper.checkpoint import Checkpointer
    state = torch.zeros(100_000)
    here = pathlib.Path(".")
    with Checkpointer(state=state) as checkpoint:
        print("from", checkpoint.completed, flush=True)
        while not (here / "finish").exists():
            state += 1
            time.sleep(0.02)
            checkpoint.step()
            (here / "step").write_text(str(checkpoint.completed))
    assert state[0] == checkpoint.completed
    print("finished at", checkpoint.completed, flush=True)
"""
FILES = """
    import os, pathlib, sys, time
    file = pathlib.Path(os.environ["SPOTBURST_STATE_DIR"], "step")
    print("from", file.read_text() if file.exists() else "0", flush=True)
    step = 0
    while not pathlib.Path("finish").exists():
        step += 1
        time.sleep(0.02)
        pathlib.Path("step").write_text(str(step))
    file.write_text("final")
"""


def step(room: Room) -> int:
    try:
        return int((room.path / "step").read_text() or 0)
    except FileNotFoundError:
        return 0


def away(room: Room) -> None:
    room.marked = True  # by the attempt that ran
    room.store.rename(room.path / "away")


def back(room: Room) -> None:
    (room.path / "away").rename(room.store)


def steps_on(room: Room, count: int) -> None:
    """The program goes on for so many steps."""
    begun = step(room)
    room.wait_for(lambda: step(room) >= begun + count)


@pytest.mark.parametrize(
    ("error", "passes", "kind"),
    [
        (StoreError("no answer"), True, "StoreAway"),
        (StoreAway("no answer"), True, "StoreAway"),
        (StoreRefused("no rights"), False, "StoreRefused"),
        (ObjectMissing("gone"), False, "ObjectMissing"),
        (Damaged("flipped"), False, "Damaged"),
        (NewerFormat("2"), False, "NewerFormat"),
        (Fenced("newer"), False, "Fenced"),
        (CheckpointTooLarge("2 TiB"), False, "CheckpointTooLarge"),
        (MemoryError(), False, "MemoryError"),
    ],
)
def test_what_an_outage_is(error: BaseException, passes: bool, kind: str) -> None:
    assert (may_pass(error), kind_of(error)) == (passes, kind)
    assert issubclass(StoreAway, CheckpointFailed), "programs that catch the one catch the other"


def test_training_goes_on_and_its_end_waits(room: Room) -> None:
    process = room.start(TRAINING, "--interval", "0.3s")
    room.wait_for(room.commits)
    away(room)
    room.until_said(process, "the store can't be reached, it is tried again; the last commit is")
    steps_on(room, 60)
    back(room)
    count = len(room.commits())
    room.wait_for(lambda: len(room.commits()) > count + 1)
    away(room)
    (room.path / "finish").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    back(room)
    code, out, err = room.end(process)
    assert code == 0, err
    assert room.kinds()[-2:] == ["commit", "end"]
    assert f"finished at {room.commits()[-1].body['step']}\n" in out, "the final state is committed"
    assert "the store is back after" in err


def test_store_that_stays_away_brings_the_job_back_until_it_is_there(room: Room) -> None:
    process = room.start(TRAINING, "--interval", "0.3s", "--store-patience", "2s")
    room.wait_for(room.commits)
    away(room)
    (room.path / "finish").touch()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert "the store stays away" in err
    room.view(restarts=1)
    code, _, err = room.run(["touch", "started"], "--store-patience", "1s", restarts="1")
    assert code == ExitCode.REQUEUED, err
    assert room.calls() == ["scontrol requeue 12"] * 2
    assert not (room.path / "started").exists()
    back(room)
    last = room.commits()[-1].body["step"]
    assert "end" not in room.kinds()
    room.view(restarts=2)
    code, out, err = room.run(TRAINING, restarts="2")
    assert code == 0, err
    assert out.startswith(f"from {last}\n")


def test_last_files_of_a_finished_program_wait_for_the_store(room: Room) -> None:
    process = room.start(FILES, "--state-dir", str(room.path / "state"))
    room.wait_for(lambda: step(room) > 5)
    away(room)
    (room.path / "finish").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    back(room)
    code, _, err = room.end(process)
    assert code == 0, err
    assert room.kinds() == ["claim", "commit", "end"]


def test_last_files_that_wait_in_vain_bring_the_job_back(room: Room) -> None:
    process = room.start(FILES, "--state-dir", str(room.path / "state"), "--store-patience", "1s")
    room.wait_for(lambda: step(room) > 5)
    away(room)
    (room.path / "finish").touch()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert room.calls() == ["scontrol requeue 12"]
    back(room)
    assert room.kinds() == ["claim"], "no end: the run is not over"


def test_reclaim_while_the_last_files_wait_requeues_in_time(room: Room) -> None:
    process = room.start(FILES, "--state-dir", str(room.path / "state"))
    room.wait_for(lambda: step(room) > 5)
    away(room)
    (room.path / "finish").touch()
    room.until_said(process, "the store can't be reached")
    room.notice(seconds=5.0)
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert room.calls() == ["scontrol requeue 12"]


def test_urgent_checkpoint_is_made_when_the_store_is_back_before_the_deadline(room: Room) -> None:
    process = room.start(TRAINING, "--interval", "1h")
    room.wait_for(lambda: step(room) > 20)
    away(room)
    room.notice()
    steps_on(room, 5)  # it is asked again between steps
    back(room)
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert [entry.body["urgent"] for entry in room.commits()] == [True]
    assert room.kinds()[-1] == "interrupted"


@pytest.mark.parametrize(("program", "options"), [(TRAINING, ()), (FILES, ("--state-dir",))], ids=["torch", "files"])
def test_rights_that_are_taken_away_are_no_outage(room: Room, program: str, options: tuple[str, ...]) -> None:
    """Waiting would not help: the run ends, and says why."""
    options = (*options, str(room.path / "state")) if options else ()
    process = room.start(program, "--interval", "0.3s", *options)
    room.wait_for(lambda: step(room) > 5 and (program is FILES or room.commits()))
    folders = [room.store, *(path for path in room.store.rglob("*") if path.is_dir())]
    if subprocess.run(["chattr", "+i", *folders], check=False, capture_output=True).returncode:
        unmet("needs root and a file system with attributes, since rights do not bind root")
    try:
        (room.path / "finish").touch()
        code, _, err = room.end(process)
    finally:
        subprocess.run(["chattr", "-i", *folders], check=True)
    assert code == (ExitCode.CHECKPOINT_FAILED if program is TRAINING else ExitCode.STORE_REFUSED), err
    assert "Operation not permitted" in err
    assert not room.calls()
