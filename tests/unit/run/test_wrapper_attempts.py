"""The wrappers of several attempts, steps and ranks of one job: which of them may run, and what it goes on from."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from tests.unit.run.programs import COUNTER, SLEEPER, ready

if TYPE_CHECKING:
    from conftest import Room


def test_finished_run_is_not_run_again(room: Room) -> None:
    room.run(["sh", "-c", "echo once >> file"])
    code, _, err = room.run(["sh", "-c", "echo once >> file"], restarts="1")
    assert code == 0
    assert (room.path / "file").read_text() == "once\n"
    assert "ended successfully" in err


def test_a_wrapper_whose_outputs_are_closed_saves_and_ends_as_ever(room: Room) -> None:
    (room.path / "state").mkdir()
    room.wrapper = (
        "import os, sys; sys.stdout = sys.stderr = None; os.close(1); os.close(2)\n"
        "from slurm_plugin.cli import main\nsys.argv[0:1] = ['spotburst', 'run']\nmain()"
    )
    look = "import os; print('said'); open('state/file', 'w').write(os.readlink('/proc/self/fd/1') + os.readlink('/proc/self/fd/2'))"
    code, _, _ = room.run(look, "--state-dir", str(room.path / "state"))
    assert code == 0
    assert (room.path / "state/file").read_text() == "/dev/null" * 2
    assert room.kinds() == ["claim", "commit", "end"]


def test_another_command_of_the_same_job_needs_a_name(room: Room) -> None:
    room.run(["sh", "-c", "exit 0", "a \x1b[2J word"])
    code, _, err = room.run(["echo", "second"], SLURM_STEP_ID="1")
    assert code == ExitCode.USAGE
    assert "--name" in err
    assert "has finished with another command than this one, sh -c 'exit 0' 'a ?[2J word': give" in err
    code, out, _ = room.run(["echo", "second"], "--name", "second", SLURM_STEP_ID="1")
    assert (code, out) == (0, "second\n")


def test_next_attempt_of_an_unfinished_run_may_have_another_command(room: Room) -> None:
    room.run(["sh", "-c", "kill -KILL $$", "node-1"])  # such as the address of the job's first node
    code, _, err = room.run(["sh", "-c", "exit 0", "node-2"], restarts="1")
    assert code == 0, err
    assert room.kinds().count("claim") == 2


def test_second_attempt_fences_the_first(room: Room) -> None:
    first = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    second = room.start(COUNTER, "--state-dir", str(room.path / "state2"), restarts="1")
    ready(room)
    first.send_signal(signal.SIGUSR1)  # a commit is asked for
    code, _, err = room.end(first)
    assert code == ExitCode.FENCED
    assert "fenced" in err
    assert [e.epoch for e in room.log()] == [1, 2], "the old attempt wrote nothing"
    assert room.calls() == []
    assert second.poll() is None
    second.kill()


def test_fenced_attempt_is_stopped_between_commits_too(room: Room) -> None:
    first = room.start(SLEEPER)
    ready(room)
    second = room.start(SLEEPER, restarts="1")
    ready(room)
    code, _, _ = room.end(first)
    assert code == ExitCode.FENCED
    assert room.kinds() == ["claim", "claim"]
    second.kill()


def test_a_job_that_comes_back_does_not_begin_anew_on_a_bare_mount_point(room: Room) -> None:
    process = room.start(SLEEPER, restarts="1")
    ready(room)
    process.kill()
    process.wait()
    room.store.rename(room.path / "away")
    room.store.mkdir()  # the mount point, without what is mounted there
    room.view(restarts=2)
    process = room.start(SLEEPER, restarts="2")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    assert not list(room.store.rglob("*")), "nothing may be begun here"
    room.store.rmdir()
    (room.path / "away").rename(room.store)
    room.wait_for(lambda: room.kinds() == ["claim", "claim"])
    process.kill()


def test_older_attempt_is_refused(room: Room) -> None:
    second = room.start(SLEEPER, restarts="1")
    ready(room)
    code, _, _ = room.run(SLEEPER)
    assert code == ExitCode.RUN_HELD
    second.kill()


def test_two_attempts_without_progress_end_the_run(room: Room) -> None:
    codes = []
    for restarts in range(3):
        room.view(restarts=restarts)
        code, _, err = room.run(["sh", "-c", "echo x >> tries; kill -9 $$"], restarts=str(restarts))
        codes.append(code)
    assert codes == [ExitCode.REQUEUED, ExitCode.REQUEUED, ExitCode.NO_PROGRESS], err
    assert (room.path / "tries").read_text() == "x\nx\n"
    end = room.log()[-1]
    assert (end.kind.value, end.body["reason"]) == ("end", "NoProgress")
    assert len(room.calls()) == 2


def test_other_ranks_do_not_wait_for_a_rank_0_that_has_begun_nothing(room: Room) -> None:
    more = {"SLURM_STEP_NUM_TASKS": "2"}
    room.view(requeue=0)
    other = room.start(["touch", "started"], **more, SLURM_PROCID="1")
    code, _, err = room.run(["touch", "started"], **more)
    assert (code, "--no-requeue" in err) == (ExitCode.NOT_REQUEUEABLE, True)
    code, _, err = room.end(other)
    assert (code, "rank 0 has begun nothing" in err) == (ExitCode.NOT_REQUEUEABLE, True), err
    assert not (room.path / "started").exists()
    room.view(restarts=1)  # the same job, put right
    other = room.start(["true"], **more, restarts="1", SLURM_PROCID="1")
    assert room.run(["true"], **more, restarts="1")[0] == room.end(other)[0] == 0


def test_other_ranks_find_the_claim_and_write_nothing(room: Room) -> None:
    state = room.path / "state"
    script = f"""
        echo $SPOTBURST_EPOCH $(cat {state}/file); touch shown-$SLURM_PROCID
        until [ -e write ]; do sleep 0.05; done
        echo saved > mine-$SLURM_PROCID; mv mine-$SLURM_PROCID {state}/file
        until [ -e leave ]; do sleep 0.05; done
        kill -9 $$
    """
    command = ["sh", "-c", script]
    steps = [room.path / name for name in ("shown-0", "shown-1", "write", "leave")]
    for restarts, said in (("0", "1\n"), ("1", "2 saved\n")):
        more = {"SLURM_STEP_NUM_TASKS": "2", "restarts": restarts}
        options = ["--state-dir", str(state), "--interval", "0.3s"]
        other = room.start(command, *options, **more, SLURM_PROCID="1")
        first = room.start(command, *options, **more)
        room.wait_for(lambda: steps[0].exists() and steps[1].exists())
        steps[2].touch()
        room.wait_for(room.commits)
        steps[3].touch()
        for process in (first, other):
            _, out, err = room.end(process)
            assert out == said, err
        for path in (state / "file", *steps):
            path.unlink()
        room.view(restarts=1)
    assert {e.writer.nonce for e in room.log()} == {e.writer.nonce for e in room.log() if e.kind.value == "claim"}
    assert room.kinds().count("claim") == 2
