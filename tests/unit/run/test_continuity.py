"""--continuity restartable and ephemeral, under a real wrapper: with a shell program, a Python program and another language."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import job_wrapper
from job_wrapper.client import ConnectionLost
from job_wrapper.errors import ExitCode, UsageError
from job_wrapper.protocol import encode
from job_wrapper.run.counters import Counters, counters_of
from job_wrapper.tell import main

if TYPE_CHECKING:
    from conftest import Room

BIN = str(Path(sys.executable).parent)
SHELL = """
echo "from ${SPOTBURST_COMPLETED:-none} of ${SPOTBURST_TOTAL:-none}"
done=${SPOTBURST_COMPLETED:-0}
while [ $done -lt 40 ]; do
    done=$((done + 1))
    echo $done >> work
    spotburst progress $done 40 || exit 9
    [ ! -e stop ] || { echo "$SPOTBURST_SOCKET" > socket; touch stopped; sleep 600; }
done
"""
PYTHON = """
    import pathlib, time, job_wrapper
    print("from", job_wrapper.completed(), flush=True)
    for number in range(job_wrapper.completed(), 100_000):
        time.sleep(0.2)  # a wrapper that stands still has room for 64 that it has not heard yet
        job_wrapper.progress(number + 1, 100_000)
        pathlib.Path("step").write_text(str(number + 1))
        if pathlib.Path("finish").exists():
            break
"""
PERL = """
use IO::Socket::UNIX;
$| = 1;
print "from ", $ENV{SPOTBURST_COMPLETED} // "none", "\\n";
my $wrapper = IO::Socket::UNIX->new(Peer => $ENV{SPOTBURST_SOCKET}) or die "no socket";
print $wrapper qq({"type":"progress","completed":7,"total":9}\\n);
$wrapper->flush;
sleep 600 unless $ENV{SPOTBURST_COMPLETED};
"""
RESTARTABLE = ("--continuity", "restartable")


def heard(room: Room) -> None:
    """The wrapper has taken in what its program has told: it answers a question that came later."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect((room.path / "socket").read_text().strip())
        stream.sendall(encode({"type": "signal.ask", "number": 0}))
        assert stream.makefile().readline()


def test_shell_program_goes_on_from_its_counter(room: Room) -> None:
    path = f"{BIN}:{room.fake}:{os.environ['PATH']}"
    (room.path / "stop").touch()
    process = room.start(["sh", "-c", SHELL], *RESTARTABLE, PATH=path)
    room.wait_for((room.path / "stopped").exists)
    heard(room)
    room.notice()
    code, out, err = room.end(process)
    assert (code, out) == (ExitCode.REQUEUED, "from none of none\n"), err
    (commit,) = room.commits()
    assert (commit.body["step"], commit.body["urgent"]) == (1, True)
    for entry in (commit, room.log()[-1]):
        assert entry.body["progress"] == {"completed": 1, "total": 40}, "the manager reads it from the log"
    for name in ("stop", "notice.json"):
        (room.path / name).unlink()
    room.view(restarts=1)
    code, out, err = room.run(["sh", "-c", SHELL.replace("40", "4")], *RESTARTABLE, restarts="1", PATH=path)
    assert (code, out) == (0, "from 1 of 40\n"), err
    assert (room.path / "work").read_text().split() == ["1", "2", "3", "4"], "nothing is done twice, nothing left out"


def test_python_program_and_a_kill_without_notice(room: Room) -> None:
    process = room.start(PYTHON, *RESTARTABLE, "--interval", "0.2s")
    room.wait_for(lambda: len(room.commits()) >= 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    last = room.commits()[-1].body["step"]
    assert last > 0
    process = room.start(PYTHON, *RESTARTABLE, restarts="1")
    room.wait_for(lambda: int((room.path / "step").read_text() or 0) > last + 5)
    (room.path / "finish").touch()
    code, out, err = room.end(process)
    assert code == 0, err
    assert out == f"from {last}\n"
    assert room.commits()[-1].body["step"] == int((room.path / "step").read_text()), "the end's counter is kept too"


def test_program_killed_from_outside_keeps_its_counter(room: Room) -> None:
    program = ["sh", "-c", "spotburst progress 5; kill -KILL $$"]
    code, _, err = room.run(program, *RESTARTABLE, PATH=f"{BIN}:{room.fake}:{os.environ['PATH']}")
    assert code == ExitCode.REQUEUED, err
    assert [entry.body["step"] for entry in room.commits()] == [5]


def test_program_of_another_language_writes_a_line_to_the_socket(room: Room) -> None:
    process = room.start(["perl", "-e", PERL], *RESTARTABLE, "--interval", "0.2s")
    room.wait_for(room.commits)
    room.notice()
    assert room.end(process)[0] == ExitCode.REQUEUED
    (room.path / "notice.json").unlink()
    room.view(restarts=1)
    code, out, err = room.run(["perl", "-e", PERL], *RESTARTABLE, restarts="1")
    assert (code, out) == (0, "from 7\n"), err


def test_counters_that_stand_still_are_no_progress(room: Room) -> None:
    """Otherwise a program that never gets any further would be brought back for ever."""
    path = f"{BIN}:{room.fake}:{os.environ['PATH']}"
    program = ["sh", "-c", "spotburst progress 5; kill -KILL $$"]
    codes = []
    for restart in range(4):
        room.view(restarts=restart)
        codes.append(room.run(program, *RESTARTABLE, restarts=str(restart), PATH=path)[0])
    assert codes == [89, 89, 89, ExitCode.NO_PROGRESS]
    assert len(room.commits()) == 1


def test_counters_ride_along_with_state_directories(room: Room) -> None:
    program = """
        import os, time, pathlib, job_wrapper
        print(job_wrapper.completed(), flush=True)
        pathlib.Path(job_wrapper.state_dir(), "f").write_text("x")
        job_wrapper.progress(3, 10)
    """
    options = ("--state-dir", str(room.path / "state"), "--run", "named")
    assert room.run(program, *options)[:2] == (0, "0\n")
    assert room.commits("c/named/main")[-1].body["step"] == 3


def test_ephemeral_begins_anew_and_keeps_nothing(room: Room) -> None:
    program = ["sh", "-c", "env | grep -c ^SPOTBURST_SOCKET; touch ready; sleep 600"]
    for restart in range(3):
        room.view(restarts=restart)
        process = room.start(program, "--continuity", "ephemeral", "--interval", "0.2s", restarts=str(restart))
        room.wait_for((room.path / "ready").exists)
        (room.path / "ready").unlink()
        room.notice()
        code, out, err = room.end(process)
        assert (code, out) == (ExitCode.REQUEUED, "0\n"), err
        (room.path / "notice.json").unlink()
    assert room.commits() == []
    assert not (room.store / "c/12/main/data").exists()
    room.view(restarts=3)
    code, _, err = room.run(["true"], "--continuity", "ephemeral", restarts="3")
    assert code == 0, f"no bound on attempts without a commit: {err}"
    assert room.kinds()[-1] == "end"


def test_ephemeral_is_brought_back_only_so_often(room: Room) -> None:
    room.node["max_attempts"] = 1
    program, codes = ["sh", "-c", "kill -KILL $$"], []
    for restart in range(3):
        room.view(restarts=restart)
        codes.append(room.run(program, "--continuity", "ephemeral", restarts=str(restart))[0])
    assert codes == [89, 89, ExitCode.MAX_ATTEMPTS]


def test_state_directories_need_checkpoints(room: Room) -> None:
    code, _, err = room.run(["true"], *RESTARTABLE, "--state-dir", str(room.path / "s"))
    assert code == ExitCode.USAGE
    assert "--continuity restartable" in err


def test_a_checkpoint_of_state_is_not_dropped_for_a_counter(room: Room) -> None:
    process = room.start(
        ["sh", "-c", "touch state/f; sleep 600"], "--state-dir", str(room.path / "state"), "--interval", "0.2s"
    )
    room.wait_for(room.commits)
    process.send_signal(signal.SIGKILL)
    process.wait()
    code, _, err = room.run(["true"], *RESTARTABLE, restarts="1")
    assert code == ExitCode.USAGE, err
    assert "holds a program's state" in err


@pytest.mark.parametrize("arguments", [[], ["a"], ["1", "2", "3"], ["-1"], ["1.5"], ["9" * 19]])
def test_command_refuses_what_is_no_count(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    assert "spotburst progress COMPLETED [TOTAL]" in capsys.readouterr().err


def test_without_a_wrapper_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPOTBURST_SOCKET", "SPOTBURST_COMPLETED"):
        monkeypatch.delenv(name, raising=False)
    assert main(["1", "2"]) == 0
    job_wrapper.progress(1, 2)
    assert job_wrapper.completed() == 0
    with pytest.raises(UsageError):
        job_wrapper.progress(-1)
    with pytest.raises(UsageError):
        job_wrapper.progress(1, "2")  # type: ignore[arg-type]


def test_wrapper_that_is_gone_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPOTBURST_SOCKET", str(tmp_path / "events"))
    with pytest.raises(ConnectionLost):
        job_wrapper.progress(1)
    assert main(["1"]) == 1
    assert "the wrapper does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "told", [None, [], {}, {"completed": -1}, {"completed": True}, {"completed": "1"}, {"completed": 1 << 63}]
)
def test_what_is_no_counter_is_passed_over(told: object) -> None:
    assert counters_of(told) is None


def test_counters() -> None:
    assert counters_of({"completed": 3, "total": "x"}) == Counters(3)
    assert Counters(3, 9).environment() == {"SPOTBURST_COMPLETED": "3", "SPOTBURST_TOTAL": "9"}


def test_the_command_starts_without_what_the_others_need() -> None:
    code = "import sys; sys.argv = ['spotburst', 'progress', '1']; from slurm_plugin.cli import main; main(); print('typer' in sys.modules, 'obstore' in sys.modules)"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPOTBURST")}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True).stdout
        == "False False\n"
    )
