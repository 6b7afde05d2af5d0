"""A session of srun --pty: its notice is told with the time left, what it has is saved twice, and the command shown goes on from it."""

from __future__ import annotations

import re
import shlex
import signal
import time

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.node_config import NodeConfig
from job_wrapper.notice.types import Notice
from job_wrapper.run.identity import Identity
from job_wrapper.run.interactive import Session, command_to_go_on, session_left
from job_wrapper.run.options import parse_options
from tests.unit.run.conftest import LEAVES_LATE, Room

TAKEN = "from job_wrapper.run.desk import Desk; took = Desk.committed; Desk.committed = lambda *given: open('taken', 'w').close() or took(*given); "
"""The wrapper makes a file as it takes in that a checkpoint is committed. One that is still under way is not asked for again."""


@pytest.mark.parametrize(("left", "wait"), [(120, 90), (60, 30), (30, 15), (10, 5), (9, 0), (0, 0), (-5, 0)])
def test_a_session_goes_on_until_shortly_before_its_end(left: float, wait: float) -> None:
    assert session_left(left) == wait


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        (
            "--state-dir /w -- bash -i",
            {"SLURM_JOB_PARTITION": "gpu", "SLURM_GPUS_ON_NODE": "2", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_NODES": "1"},
            "srun --partition=gpu --gres=gpu:2 --pty spotburst run --run 12 --state-dir /w -- bash -i",
        ),
        (
            "--run=big --name x --state-dir w --uri file:///a -- sh -c 'echo a'",
            {"PWD": "/home/a", "SPOTBURST_URI": "file:///b", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_NODES": "2"},
            "srun --nodes=2 --ntasks=4 --chdir=/home/a --pty spotburst run --run big --name x --state-dir w --uri file:///a -- sh -c 'echo a'",
        ),
        ("python t.py", {"SPOTBURST_URI": "s3://b"}, "srun --pty spotburst run --run 12 --uri s3://b -- python t.py"),
    ],
)
def test_the_command_that_goes_on(words: str, environ: dict[str, str], expected: str) -> None:
    argv = shlex.split(words)
    options = parse_options(argv, NodeConfig(uri="file:///n"), environ)
    identity = Identity("c", "12", "12", 0, 0, 0, 1, 1)
    command = command_to_go_on(argv, options, identity, environ, terminal=True)
    assert command == expected
    again = shlex.split(command)
    parsed = parse_options(again[again.index("run") + 1 :], NodeConfig(uri="file:///n"), {})
    assert parsed.command == options.command, "the command can be read back"


def test_a_notice_whose_deadline_comes_nearer_ends_the_session_sooner_and_once() -> None:
    emitted: list[Notice | None] = []
    session = Session(lambda _: None, "srun …", "work", ask=lambda: None)
    now = time.time()
    for left in (1000.0, 2.0, 2.0, 500.0):
        session.heard(Notice("aws", "reclaim", "the same", now, now + left), emitted.append)
    Room.wait_for(lambda: emitted)
    assert [notice and notice.deadline for notice in emitted] == [now + 2.0]
    session.heard(None, emitted.append)
    assert emitted[1:] == [None]


def test_a_notice_lets_the_session_go_on_saves_it_twice_and_its_command_goes_on_from_it(room: Room) -> None:
    state = room.path / "work"
    state.mkdir()
    room.view(batch=0)
    room.wrapper = LEAVES_LATE + TAKEN + room.wrapper
    process = room.start(
        ["sh", "-c", "echo first > work/note; while true; do echo late > work/later; sleep 0.1; done"],
        *("--state-dir", str(state)),
        ENVIRONMENT="-",
    )
    room.wait_for(lambda: (state / "later").exists())
    room.notice(1000.0)
    room.wait_for((room.path / "taken").exists)
    assert len(room.commits()) == 1
    (state / "between").write_text("the session goes on")
    room.notice(8.0)  # too little for the session to go on any more
    code, _, err = room.end(process)
    assert code == ExitCode.PREEMPTED
    assert len(room.commits()) == 2
    told = re.search(r"\*\*\* This node goes away in (\d+) s \(aws reclaim\)", err)
    assert told is not None and 900 < int(told[1]) <= 1000
    assert f"*** {state} is saved now, and again in" in err
    assert room.calls("scontrol") == [], "nothing could requeue it"
    command = err.split("to go on: ")[-1].strip()
    arguments = shlex.split(command)
    assert arguments[:1] == ["srun"]
    for name in ("note", "between"):
        (state / name).unlink()
    room.notice_file.unlink()  # another node has none
    options = arguments[arguments.index("run") + 1 : arguments.index("--")]
    code, out, err = room.run(["cat", "work/note", "work/between"], *options, SLURM_JOB_ID="13", ENVIRONMENT="-")
    assert (code, out) == (0, "first\nthe session goes on"), err


def test_ctrl_c_tells_of_the_last_commit(room: Room) -> None:
    state = room.path / "work"
    state.mkdir()
    process = room.start(
        ["sh", "-c", "echo a > work/note; sleep 600"], "--state-dir", str(state), "--interval", "1s", slurm=False
    )
    room.wait_for(lambda: room.commits("c/here/main"))
    process.send_signal(signal.SIGINT)
    code, _, err = room.end(process)
    assert code != 0
    assert "ended by Ctrl-C; the last commit is entry" in err
    assert "the same command goes on from it" in err
