"""Programs for a real wrapper to run, and looks at their processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from job_wrapper.errors import ExitCode

if TYPE_CHECKING:
    from conftest import Room


COUNTER = """
    import os, sys, time, job_wrapper
    file = os.path.join(job_wrapper.state_dir(), "step")
    step = int(open(file).read()) if job_wrapper.restored() else 0
    print("from", step, flush=True)
    last = int(os.environ.get("LAST", "1000000"))
    def save():
        with open(file + ".new", "w") as f:
            f.write(str(step))
        os.replace(file + ".new", file)
    job_wrapper.on_request(save)
    open("ready", "w").close()
    while step < last:
        step += 1
        time.sleep(0.01)
        if job_wrapper.requested():
            open("answered", "w").close()
    save()
"""
TRAINING = COUNTER.replace("step += 1\n", "step += 1; job_wrapper.log(step, loss=1.0 / step, rate=0.5)\n")
SLEEPER = "import time\nopen('ready', 'w').close()\ntime.sleep(600)\n"


def trained(room: Room, further: int) -> int:
    """`TRAINING` reclaimed once, and then done in so many further steps; returns the step at which it was reclaimed."""
    state = ["--state-dir", str(room.path / "state"), "--interval", "0.4s"]
    process = room.start(TRAINING, *state)
    room.wait_for(lambda: len(room.commits()) >= 2)
    room.notice()
    assert room.end(process)[0] == ExitCode.REQUEUED
    room.notice_file.unlink()
    room.view(restarts=1)
    stopped = int((room.path / "state" / "step").read_text())
    assert room.run(TRAINING, *state, restarts="1", LAST=str(stopped + further))[0] == 0
    return stopped


def ready(room: Room) -> None:
    room.wait_for((room.path / "ready").exists)
    (room.path / "ready").unlink()


def answered(room: Room) -> None:
    """`COUNTER` has been told that its checkpoint is committed: the wrapper has done with what it was asked for."""
    room.wait_for((room.path / "answered").exists)
    (room.path / "answered").unlink()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
