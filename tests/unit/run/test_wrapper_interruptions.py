"""The wrapper when its job is interrupted: notices, preemptions, signals, the requeue."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from tests.unit.run.conftest import PATIENT
from tests.unit.run.programs import COUNTER, SLEEPER, answered, ready

if TYPE_CHECKING:
    from conftest import Room


def test_reclaim_commits_requeues_and_goes_on_at_the_step(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    room.notice()
    code, out, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert out == "from 0\n"
    assert room.calls() == ["scontrol requeue 12"]
    assert room.kinds() == ["claim", "commit", "interrupted"]
    commit, interrupted = room.log()[1:]
    assert commit.body["urgent"] is True
    assert commit.body["notice"]["provider"] == "aws"
    assert commit.body["requested_at"] <= commit.body["answered_at"] <= commit.time
    assert interrupted.body["reason"] == "aws reclaim"
    saved = int((room.path / "state" / "step").read_text())
    # On another node: its disk is empty, and there is no notice.
    (room.path / "state" / "step").unlink()
    (room.path / "state").rmdir()
    room.notice_file.unlink()
    room.view(restarts=1)
    code, out, err = room.run(COUNTER, "--state-dir", str(room.path / "state"), restarts="1", LAST=str(saved + 5))
    assert code == 0, err
    assert out == f"from {saved}\n"
    assert room.kinds() == ["claim", "commit", "interrupted", "claim", "commit", "end"]
    assert [e.epoch for e in room.log()] == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_preemption_by_any_signal(room: Room, number: int) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    room.preempt()
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    process.send_signal(number)
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert room.calls() == ["scontrol requeue 12"]
    assert room.log()[-1].body["reason"] == "preempted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_warning_while_the_wrapper_starts_is_heard(room: Room, number: int) -> None:
    """Slurm sends one again that it could not tell a booting node, whatever attempt has begun there. Here the start waits for a setting."""
    room.wrapper = (
        f"{PATIENT}import sys; from slurm_plugin.cli import main; sys.argv[:1] = ['spotburst', 'run']; main()"
    )
    settings = room.path / "slow.json"
    os.mkfifo(settings)
    room.preempt()
    process = room.start(
        COUNTER, "--state-dir", str(room.path / "state"), SPOTBURST_NODE_CONFIG=str(settings), LAST="3"
    )
    writing = os.open(settings, os.O_WRONLY)  # opens when the wrapper reads
    process.send_signal(number)
    time.sleep(0.2)
    os.write(writing, (room.path / "node.json").read_bytes())
    os.close(writing)
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert room.calls() == ["scontrol requeue 12"]
    assert room.log()[-1].body["reason"] == "preempted"


def test_users_own_signal_commits_and_the_program_goes_on(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    for count in (1, 2):
        process.send_signal(signal.SIGUSR1)
        answered(room)  # a signal before that would be taken for the first one again
        assert len(room.commits()) == count
    assert process.poll() is None
    assert room.calls() == []
    process.kill()


def test_signals_to_the_whole_tree_do_not_end_the_program(room: Room) -> None:
    """proctrack/linuxproc signals every process that it finds below the step."""
    process = room.start("open('pid','w').write(str(__import__('os').getpid()))\n" + SLEEPER)
    ready(room)
    program = int((room.path / "pid").read_text())
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        os.kill(program, number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.kill(program, 0)
    assert os.getsid(program) != os.getsid(process.pid)


def test_cancelled_job_commits_and_is_not_requeued(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    room.view("COMPLETING")
    process.send_signal(signal.SIGTERM)
    code, _, _ = room.end(process)
    assert code == 143
    assert room.calls() == []
    assert room.kinds() == ["claim", "commit", "interrupted"]


def test_reclaim_of_a_program_that_knows_nothing_of_it(room: Room) -> None:
    process = room.start(SLEEPER)
    ready(room)
    room.notice()
    code, _, _ = room.end(process)
    assert code == ExitCode.REQUEUED
    assert room.kinds() == ["claim", "interrupted"]


def test_requeue_that_is_refused_keeps_the_wrapper_alive(room: Room) -> None:
    (room.fake / "refuse").write_text("Requeue of this job is not now possible\n")
    process = room.start(SLEEPER)
    ready(room)
    room.notice()
    room.wait_for(lambda: len(room.calls()) >= 2)
    assert process.poll() is None
    (room.fake / "refuse").unlink()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert err.count("not now possible") == 1


def test_batch_step_watches_the_preempt_time_by_itself(room: Room) -> None:
    process = room.start(SLEEPER, SLURM_STEP_ID="-")
    ready(room)
    room.preempt()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert "srun" in err


def test_outside_slurm_term_commits_and_the_next_start_goes_on(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"), slurm=False)
    ready(room)
    process.send_signal(signal.SIGTERM)
    code, _, _ = room.end(process)
    assert code == 143
    (room.path / "state" / "step").write_text("-5")
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"), slurm=False)
    ready(room)
    other, _, err = room.run(COUNTER, "--state-dir", str(room.path / "state2"), slurm=False)
    assert (other, "held" in err) == (ExitCode.RUN_HELD, True)
    process.send_signal(signal.SIGINT)
    code, out, _ = room.end(process)
    assert code == 130
    assert int(out.split()[1]) > 0
    assert room.calls() == []
