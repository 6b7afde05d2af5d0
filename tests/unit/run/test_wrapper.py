"""The wrapper as users meet it: real processes, a real socket, a POSIX store. Its arguments, and the program that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from tests.unit.run.programs import alive, ready

if TYPE_CHECKING:
    from conftest import Room


@pytest.mark.parametrize(
    ("program", "code", "reason"),
    [
        (["true"], 0, "Finished"),
        (["sh", "-c", "exit 7"], 7, "ProgramFailed"),
        (["sh", "-c", "kill -SEGV $$"], 139, "ProgramFailed"),
        (["/no/such/program"], 127, "ProgramFailed"),
        (["/etc/passwd"], 126, "ProgramFailed"),
    ],
)
def test_exit_code_of_the_program(room: Room, program: list[str], code: int, reason: str) -> None:
    got, _, err = room.run(program)
    assert got == code, err
    end = room.log()[-1]
    assert (end.kind.value, end.body["exit_code"], end.body["reason"]) == ("end", code, reason)
    assert room.calls() == []


@pytest.mark.parametrize(
    ("options", "lines"),
    [(["--interval", "30s"], 1), (["--interval", "1m"], 0), (["--interval", "30s", "--continuity", "ephemeral"], 0)],
)
def test_a_short_interval_is_warned_of_in_one_line(room: Room, options: list[str], lines: int) -> None:
    said = room.run(["true"], *options)[2].splitlines()
    assert len([line for line in said if "trials" in line or "entry in the run's log" in line]) == lines, said


def test_environment_and_streams_of_the_program(room: Room) -> None:
    code, out, _ = room.run(
        "import os\nfor k in sorted(os.environ):\n  if k.startswith('SPOTBURST'): print(k, os.environ[k])"
    )
    assert code == 0
    told = dict(line.split(" ", 1) for line in out.splitlines())
    assert (told["SPOTBURST_RUN"], told["SPOTBURST_EPOCH"], told["SPOTBURST_RESTORED"]) == ("c/12/main", "1", "0")
    assert not Path(told["SPOTBURST_SOCKET"]).parent.exists(), "the socket's folder is removed"


def test_keys_of_the_configuration_that_may_change_are_told_to_the_program(room: Room) -> None:
    show = "import os; print(os.environ['SPOTBURST_ALLOW_CONFIG_CHANGE'], os.environ['PET_SIGNALS_TO_HANDLE'])"
    options = ("--allow-config-change", "lr", "--allow-config-change", "data.path")
    _, out, err = room.run(show, *options, SPOTBURST_ALLOW_CONFIG_CHANGE="steps")
    assert out == "steps,lr,data.path SIGINT,SIGQUIT\n", err


@pytest.mark.parametrize("folder", ["", "no/absolute/path", "/not/there"])
def test_tmpdir_that_cannot_be_used(room: Room, folder: str) -> None:
    code, out, err = room.run("import os; print(os.environ['SPOTBURST_SOCKET'])", TMPDIR=folder)
    assert code == 0, err
    assert out.startswith("/tmp/spotburst-")


def test_no_place_for_the_socket_is_said_before_any_work(room: Room) -> None:
    code, out, err = room.run(["echo", "ran"], TMPDIR="/proc")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "TMPDIR" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("requeue", "batch", "hint"), [(0, 1, "#SBATCH --requeue"), (1, 0, "sbatch")])
def test_job_that_cannot_be_requeued_is_told_before_any_work(room: Room, requeue: int, batch: int, hint: str) -> None:
    room.view(requeue=requeue, batch=batch)
    code, _, err = room.run(["touch", "started"])
    assert code == ExitCode.NOT_REQUEUEABLE
    assert hint in err
    assert not (room.path / "started").exists()
    assert not list(room.store.iterdir()), "nothing was claimed"
    code, _, _ = room.run(["touch", "started"], "--on-interruption", "fail")
    assert code == 0


def test_uri_that_cannot_be_written(room: Room) -> None:
    code, _, err = room.run(["touch", "started"], "--uri", f"file://{room.path}/no/such/store")
    assert code == ExitCode.STORE_REFUSED
    assert "spotburst: " in err
    assert "Traceback" not in err
    assert not (room.path / "started").exists()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--state-dir", "relative"], "absolute"),
        (["--state-dir", "/"], "directory of its own"),
        (["--name", "a/b"], "name"),
    ],
)
def test_bad_arguments(room: Room, options: list[str], hint: str) -> None:
    code, _, err = room.run(["touch", "started"], *options)
    assert code == ExitCode.USAGE
    assert hint in err
    assert "Traceback" not in err
    assert not (room.path / "started").exists()


def test_outside_slurm_the_run_needs_a_name(room: Room) -> None:
    env = {k: v for k, v in room.environ().items() if not k.startswith("SLURM_")}
    command = [sys.executable, "-c", "from job_wrapper.run import main; import sys; sys.exit(main(sys.argv[1:]))"]
    done = subprocess.run([*command, "--uri", room.uri, "--", "true"], env=env, capture_output=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert b"--run" in done.stderr


def test_kill_of_the_wrapper_ends_all_that_the_program_started(room: Room) -> None:
    script = "setsid sleep 300 & echo $! > other; sleep 301 & echo $! > child; echo $$ > shell; printf %s $SPOTBURST_SOCKET > socket; touch ready; wait"
    process = room.start(["sh", "-c", script])
    ready(room)
    pids = [int((room.path / name).read_text()) for name in ("child", "shell")]
    folder = Path((room.path / "socket").read_text()).parent
    assert folder.is_dir()
    other = int((room.path / "other").read_text())
    room.wait_for(lambda: os.getsid(other) == other)
    process.kill()
    process.wait()
    room.wait_for(lambda: not any(alive(pid) for pid in pids))
    room.wait_for(lambda: not folder.exists())
    os.kill(other, signal.SIGKILL)  # a session of its own is out of reach


def test_program_leaves_nothing_behind(room: Room) -> None:
    code, _, _ = room.run(["sh", "-c", "sleep 300 & echo $! > child"])
    assert code == 0
    room.wait_for(lambda: not alive(int((room.path / "child").read_text())))
