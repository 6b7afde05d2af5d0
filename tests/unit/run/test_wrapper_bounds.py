"""What bounds a run, under real wrappers: claims of several at once, --on-interruption fail, a store that stays away, memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from tests.fixtures.unmet import unmet
from tests.unit.run.programs import COUNTER, SLEEPER, ready

if TYPE_CHECKING:
    from conftest import Room


def files(room: Room) -> list[str]:
    return ["--state-dir", str(room.path / "state")]


def reclaimed(room: Room, process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Its node gets a notice; the next attempt is on another node."""
    room.notice()
    ended = room.end(process)
    room.notice_file.unlink()
    return ended


def end_of(room: Room, run: str = "c/12/main") -> tuple[object, object]:
    last = room.log(run)[-1]
    assert last.kind.value == "end"
    return last.body["exit_code"], last.body["reason"]


def test_of_two_wrappers_that_claim_at_once_one_runs(room: Room) -> None:
    room.view()
    both = [room.start(["sh", "-c", "echo x >> ran; until [ -e end ]; do sleep 0.05; done"]) for _ in range(2)]
    room.wait_for(lambda: any(process.poll() is not None for process in both))
    (room.path / "end").touch()
    codes = sorted(room.end(process)[0] for process in both)
    assert codes == [0, ExitCode.RUN_HELD]
    assert (room.path / "ran").read_text() == "x\n"
    assert room.kinds() == ["claim", "end"]


def test_a_name_used_by_two_live_jobs_belongs_to_the_first(room: Room) -> None:
    options = ["--run", "mine", *files(room)]
    first = room.start(COUNTER, *options)
    ready(room)
    room.other_job("12", "RUNNING")
    code, _, err = room.run(COUNTER, *options, SLURM_JOB_ID="13")
    assert code == ExitCode.RUN_HELD
    assert "held by job 12" in err and "scancel 12" in err
    assert reclaimed(room, first)[0] == ExitCode.REQUEUED, "the first is not disturbed"
    assert [entry.writer.job_id for entry in room.log("c/mine/main")] == ["12"] * 3


def test_an_ended_job_that_is_submitted_again_under_its_name_goes_on_and_shuts_the_old_one_out(room: Room) -> None:
    options = ["--run", "mine", *files(room)]
    first = room.start(COUNTER, *options)
    ready(room)
    reclaimed(room, first)
    room.other_job("12", None)
    second = room.start(COUNTER, *options, SLURM_JOB_ID="13")
    ready(room)
    room.other_job("13", "RUNNING")
    room.view(restarts=1)
    code, _, err = room.run(COUNTER, *options, restarts="1")
    assert (code, "held by job 13" in err) == (ExitCode.RUN_HELD, True), "the old job, requeued by hand"
    room.other_job("13", "RUNNING")
    code, out, _ = reclaimed(room, second)
    assert code == ExitCode.REQUEUED
    assert int(out.split()[1]) > 0, "from the old job's checkpoint"
    newest = room.log("c/mine/main")[-1]
    assert (newest.writer.job_id, newest.epoch, newest.summary.recoveries) == ("13", 2, 0)


def test_on_interruption_fail_ends_the_run_and_a_new_job_goes_on(room: Room) -> None:
    process = room.start(COUNTER, *files(room), "--on-interruption", "fail")
    ready(room)
    code, _, err = reclaimed(room, process)
    assert code == ExitCode.PREEMPTED, err
    assert end_of(room) == (ExitCode.PREEMPTED, "Preempted")
    assert room.log()[-1].body["notice"]["kind"] == "reclaim"
    assert (room.fake / "comment").read_text() == "spotburst: Preempted: its capacity was taken away (exit code 91)\n"
    assert room.calls() == []
    room.view(restarts=1)  # from 24.05 on Slurm requeues a job that ends within its grace time
    code, _, err = room.run(COUNTER, *files(room), "--on-interruption", "fail", restarts="1")
    assert (code, room.kinds().count("claim")) == (ExitCode.PREEMPTED, 1), err
    process = room.start(COUNTER, *files(room), "--run", "12", SLURM_JOB_ID="13")
    ready(room)
    code, out, _ = reclaimed(room, process)
    assert int(out.split()[1]) > 0


def test_on_interruption_fail_and_a_node_that_is_lost(room: Room) -> None:
    process = room.start(SLEEPER, "--on-interruption", "fail")
    ready(room)
    process.kill()
    process.wait()
    assert room.log()[-1].body["on_interruption"] == "fail"
    room.view(restarts=1)
    code, _, err = room.run(["touch", "started"], "--on-interruption", "fail", restarts="1")
    assert code == ExitCode.NODE_LOST, err
    assert "spotburst describe" in err
    assert end_of(room) == (ExitCode.NODE_LOST, "NodeLost")
    assert not (room.path / "started").exists()


def test_a_job_whose_store_never_comes_back_is_held_after_a_day_and_loses_nothing(room: Room) -> None:
    process = room.start(COUNTER, *files(room))
    ready(room)
    reclaimed(room, process)
    room.marked = True
    room.store.rename(room.path / "away")
    short = ["--store-patience", "1s"]
    room.view(restarts=1)
    code, _, err = room.run(COUNTER, *files(room), *short, restarts="1")
    assert (code, room.calls()[-1]) == (ExitCode.REQUEUED, "scontrol requeue 12"), err
    comment = room.fake / "comment"
    text = comment.read_text()
    assert text.startswith("spotburst: StoreAway: requeued until it is back; store away since ")
    yesterday = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 86400))
    comment.write_text(f"spotburst: requeued; store away since {yesterday}\n")
    room.view(restarts=2)
    code, _, err = room.run(COUNTER, *files(room), *short, restarts="2")
    assert (code, room.calls()[-1]) == (ExitCode.REQUEUED, "scontrol requeuehold 12"), err
    assert "the job is held, `scontrol release 12`" in err
    assert "StoreAway: held after 24 h, nothing is lost" in comment.read_text()
    (room.path / "away").rename(room.store)
    room.view(restarts=3)
    process = room.start(COUNTER, *files(room), restarts="3")
    ready(room)
    room.wait_for(lambda: comment.read_text() == "\n")
    code, out, err = reclaimed(room, process)
    assert int(out.split()[1]) > 0, err


HOG = "import sys\nheld = []\nwhile True: held.append(b'x' * 5_000_000)\n"


def test_a_process_killed_for_memory_is_named_whatever_the_program_makes_of_it(room: Room) -> None:
    """In a real memory cgroup: the kernel kills the shell's child, and the shell ends with 137."""
    base = next(
        (p for p in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if (p / "cgroup.procs").exists()), None
    )
    group = (base or Path("/")) / f"spotburst-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max")
        limit.write_text(str(200 << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        unmet(f"needs root and a memory cgroup: {error}")
    try:
        (room.path / "hog.py").write_text(HOG)
        while_waiting = "while [ ! -e go ]; do sleep 0.02; done"
        process = room.start(["sh", "-c", f"{while_waiting}; {sys.executable} hog.py; exit $?"])
        room.wait_for(room.log)
        for pid in [process.pid, *_children(process.pid)]:
            (group / "cgroup.procs").write_text(str(pid))
        (room.path / "go").touch()
        code, _, err = room.end(process)
    finally:
        room.wait_for(lambda: not (group / "cgroup.procs").read_text().strip())
        room.wait_for(lambda: _removed(group))
    assert code == 137, err
    assert end_of(room) == (137, "OutOfMemory")
    assert room.calls() == [], "it is not tried again"


def _removed(group: Path) -> bool:
    """The kernel lists a dying process no more, and holds its cgroup for a moment yet."""
    try:
        group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(text) for text in found.stdout.split()]


def _saved_or_over(room: Room, before: int, process: subprocess.Popen[bytes]) -> bool:
    return len(room.commits()) > before or process.poll() is not None


@pytest.mark.parametrize(("nodes", "bound"), [("1", 8), ("2", 3)])
def test_a_job_is_brought_back_only_so_often(room: Room, nodes: str, bound: int) -> None:
    """Each attempt commits and is then killed from outside."""
    (room.path / "state").mkdir()
    (room.fake / "comment").write_text("mine\n")
    for restarts in range(bound + 2):
        room.view(restarts=restarts)
        program = [
            "sh",
            "-c",
            f"echo {restarts} > state/f; until [ -e end-{restarts} ]; do sleep 0.05; done; kill -9 $$",
        ]
        before = len(room.commits())
        process = room.start(
            program, *files(room), "--interval", "0.2s", restarts=str(restarts), SLURM_JOB_NUM_NODES=nodes
        )
        room.wait_for(partial(_saved_or_over, room, before, process))
        (room.path / f"end-{restarts}").touch()
        code, _, err = room.end(process)
        if code != ExitCode.REQUEUED:
            break
    assert (code, restarts) == (ExitCode.MAX_ATTEMPTS, bound + 1), err
    assert end_of(room) == (ExitCode.MAX_ATTEMPTS, "MaxAttempts")
    assert (
        (room.fake / "comment").read_text().startswith("mine | spotburst: MaxAttempts: it was brought back as often as")
    )
