"""An attempt that slurmctld forgot and launched again: a claim for each case, and real wrappers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.run.identity import BATCH_STEP, Identity
from job_wrapper.run.relaunch import PATIENCE, OnlyOne, is_forgotten, may_be_forgotten
from job_wrapper.slurm_job import SlurmJob
from job_wrapper.store.io_types import Entry, Kind, Summary, Writer
from tests.unit.run.programs import SLEEPER, ready

if TYPE_CHECKING:
    from conftest import Room

OLD = Writer("c", "12", 3, 0, "n1", "a")
LAST = Entry(4, Kind.COMMIT, 2, OLD, 5.0, Summary(epoch=2, command_digest="mine"))


@pytest.mark.parametrize(
    ("mine", "only_one", "expected"),
    [
        (replace(OLD, host="n2"), False, True),
        (OLD, True, True),
        (OLD, False, False),  # a second program of the same step
        (replace(OLD, restart_count=2, step_id=5), False, True),  # even the requeue is forgotten
        (replace(OLD, restart_count=4, host="n2"), True, False),  # needs no leave
        (replace(OLD, step_id=1, host="n2"), True, False),  # a later step of the same launch
        (replace(OLD, job_id="13", host="n2"), True, False),
    ],
)
def test_what_may_be_forgotten(mine: Writer, only_one: bool, expected: bool) -> None:
    assert may_be_forgotten(LAST, mine, "mine", only_one=only_one) is expected


def test_on_its_host_neither_an_attempt_that_ended_nor_another_command_may_be_forgotten() -> None:
    """They are lines of one batch script."""
    ended = replace(LAST, kind=Kind.END, summary=replace(LAST.summary, ended=3))
    elsewhere = replace(OLD, host="n2")
    for last, digest in ((ended, "mine"), (LAST, "another")):
        assert not may_be_forgotten(last, OLD, digest, only_one=True)
        assert may_be_forgotten(last, elsewhere, digest, only_one=True), "a command may hold its node's address"


class Slurm(SlurmJob):
    """Gives those answers in turn."""

    def __init__(self, *answers: bool | None) -> None:
        super().__init__("12")
        self.answers = list(answers)

    def runs_here(self, name_id: str, restart_count: int) -> bool | None:
        assert (name_id, restart_count) == ("12", 3)
        return self.answers.pop(0)


def test_a_slurmctld_that_is_away_is_waited_for() -> None:
    me = Identity("c", "12", "12", 3, 0, 0, 1, 1)
    now = [0.0]

    def asked(*answers: bool | None) -> bool:
        return is_forgotten(
            LAST, replace(OLD, host="n2"), "mine", me, Slurm(*answers), only_one=True,
            steady=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
        )  # fmt: skip

    assert asked(None, None, True)
    assert not asked(None, False)
    now[0] = 0.0
    assert not asked(*[None] * 1000) and now[0] == pytest.approx(PATIENCE, abs=3)
    assert not is_forgotten(LAST, replace(OLD, host="n2"), "mine", me, None, only_one=True)


def test_one_of_a_run_on_a_host(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    first, second, other = OnlyOne(uri, "c/12/main"), OnlyOne(uri, "c/12/main"), OnlyOne(uri, "c/12/second")
    assert (first.mine, second.mine, other.mine) == (True, False, True)
    del first
    assert OnlyOne(uri, "c/12/main").mine


@pytest.mark.parametrize("step", ["0", "-"])
@pytest.mark.parametrize("restarts", [1, 2])
def test_launched_again_with_no_higher_restart_count(room: Room, restarts: int, step: str) -> None:
    first = room.start(SLEEPER, restarts="2", SLURM_STEP_ID=step)
    ready(room)
    assert room.log()[-1].writer.step_id == (BATCH_STEP if step == "-" else 0)
    first.kill()
    first.wait()
    room.view(restarts=restarts)
    again = {"restarts": str(restarts), "SLURM_STEP_ID": step}
    code, _, _ = room.run(SLEEPER, **again, SLURMD_NODENAME="-")
    assert code == ExitCode.RUN_HELD, "Slurm could not tell that it runs here"
    second = room.start(SLEEPER, **again, SLURMD_NODENAME="n1")
    ready(room)
    assert room.kinds() == ["claim", "claim"]
    assert [entry.epoch for entry in room.log()] == [1, 2]
    if restarts == 2:
        code, _, err = room.run(SLEEPER, **again, SLURMD_NODENAME="n1")
        assert code == ExitCode.RUN_HELD and "--name" in err, "a second program of the step that is alive"
    second.kill()
    second.wait()


def test_the_next_line_of_a_batch_script_does_not_take_the_run_over(room: Room) -> None:
    batch = {"SLURM_STEP_ID": "-", "SLURMD_NODENAME": "n1"}
    failing = ["sh", "-c", "exit 3"]
    assert room.run(failing, **batch)[0] == 3
    code, _, err = room.run(["echo", "another"], **batch)
    assert code == ExitCode.USAGE and "belongs to another command" in err
    code, _, err = room.run(failing, **batch)
    assert code == ExitCode.RUN_HELD and "needs a --name of its own" in err
    killed = room.start(SLEEPER, "--name", "second", **batch)
    ready(room)
    killed.kill()
    killed.wait()
    code, _, err = room.run(["echo", "another"], "--name", "second", **batch)
    assert code == ExitCode.USAGE and "belongs to another command" in err
    assert (room.kinds(), room.kinds("c/12/second")) == (["claim", "end"], ["claim"])


def test_an_old_attempt_does_not_take_the_run_back(room: Room) -> None:
    second = room.start(SLEEPER, restarts="1")
    ready(room)
    room.view(restarts=1)
    code, _, _ = room.run(SLEEPER, SLURMD_NODENAME="n1")
    assert code == ExitCode.RUN_HELD
    second.kill()
