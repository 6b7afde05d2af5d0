"""Kills at random moments: nothing committed is lost, and the end is the same as without them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import signal
import time
from typing import TYPE_CHECKING

from job_wrapper.errors import ExitCode

if TYPE_CHECKING:
    from conftest import Room

STEPS = 300
PROGRAM = f"""
    import hashlib, os, time, job_wrapper
    state = job_wrapper.state_dir()
    file = os.path.join(state, "trace")
    lines = open(file).read().splitlines() if job_wrapper.restored() else []
    def save():
        with open(file + ".new", "w") as f:
            f.write("".join(line + "\\n" for line in lines))
        os.replace(file + ".new", file)
    job_wrapper.on_request(save)
    with open("pid.new", "w") as f:
        f.write(str(os.getpid()))
    os.replace("pid.new", "pid")
    while len(lines) < {STEPS} or restarts == 0:  # the first attempt is always killed
        last = lines[-1] if lines else "start"
        if len(lines) < {STEPS}:
            lines.append(hashlib.sha256(last.encode()).hexdigest())
        time.sleep(0.01)
        job_wrapper.requested()
    save()
"""


def test_kills_of_the_wrapper_and_of_the_program(room: Room) -> None:
    chance = random.Random(int(os.environ.get("SEED", "0")) or time.time_ns())
    room.node |= {"max_attempts": 1000, "barren_attempts": 1000}
    options = ["--state-dir", str(room.path / "state"), "--interval", "0.2s"]
    ends: list[str] = []
    for restarts in range(60):
        room.view(restarts=restarts)
        (room.path / "pid").unlink(missing_ok=True)
        # Every attempt finds another node: nothing of the last one is there.
        options[1] = str(room.path / f"state-{restarts}")
        process = room.start(
            PROGRAM.replace("state = ", f"restarts = {restarts}; state = "), *options, restarts=str(restarts)
        )
        kill = chance.choice(["wrapper", "program", "both", "reclaim", "none" if restarts > 8 else "wrapper"])
        time.sleep(chance.uniform(0.1, 1.5))
        program = int((room.path / "pid").read_text()) if (room.path / "pid").exists() else 0
        if kill in ("program", "both") and program:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, signal.SIGKILL)
        if kill in ("wrapper", "both"):
            process.kill()
        if kill == "reclaim":
            room.notice(30)
        if kill == "program" and not program:
            process.kill()
        code, _, err = room.end(process)
        room.notice_file.unlink(missing_ok=True)
        assert "Traceback" not in err, err
        assert code in (0, -9, ExitCode.REQUEUED), err
        ends.append(f"{kill}: {code}")
        if code == 0:
            break
    else:
        raise AssertionError(ends)
    log = room.log()
    assert [e.seq for e in log] == list(range(len(log)))
    assert all(b.epoch >= a.epoch for a, b in itertools.pairwise(log))
    # Each attempt went on from the newest commit before it.
    newest = None
    for entry in log:
        if entry.kind.value == "commit":
            newest = entry.seq
        elif entry.kind.value == "claim" and newest is not None:
            assert entry.summary.commits[-1].seq == newest
    expected, last = [], "start"
    for _ in range(STEPS):
        last = hashlib.sha256(last.encode()).hexdigest()
        expected.append(last)
    # The wrapper may have been killed after it had put the run's end into the log: there is nothing to do then for the attempt after it.
    finished = log[-1]
    assert finished.kind.value == "end"
    assert (room.path / f"state-{finished.writer.restart_count}" / "trace").read_text().splitlines() == expected
    assert len(ends) >= 2
