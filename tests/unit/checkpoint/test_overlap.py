"""Parameters that are copied while training goes on: the optimizer waits, and a copy that somebody wrote into is never committed."""

from __future__ import annotations

import copy
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from job_wrapper.checkpoint import Checkpointer, overlap, staging
from job_wrapper.checkpoint.write_tracking import WriteTracker
from job_wrapper.errors import CheckpointFailed, UsageError
from tests.unit.checkpoint.test_checkpointer import Recorder, settled, stored, until
from tests.unit.checkpoint.test_write_tracking import kernel  # noqa: F401
from tests.unit.checkpoint.training import assert_equal

pytestmark = pytest.mark.usefixtures("kernel")
WIDTH = 300


@pytest.fixture
def committer(tmp_path: Path) -> Recorder:
    return Recorder.open(f"file://{tmp_path}", "test")  # type: ignore[return-value]


class Held:
    """Copying behind the program waits until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        move = overlap.move

        def late(pieces: Any) -> None:
            pieces = list(pieces)
            move(iter(pieces[:1]))
            self.reached.set()
            assert self.open.wait(120)
            move(iter(pieces[1:]))

        patch.setattr(overlap, "move", late)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


class Program:
    """A model of which each parameter but the biases is copied late, and its optimizer after one step."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.backward()
        self.optimizer.step()

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, WIDTH)).square().mean().backward()

    def open(self, committer: Recorder, **options: Any) -> Checkpointer:
        state = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        return Checkpointer(**state, data=False, committer=committer, staging="overlap", **options)

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.average.state_dict()))


def saved(committer: Recorder, step: int) -> Any:
    return tuple(stored(committer, name)[step] for name in ("model", "optimizer", "average"))


def test_training_goes_on_and_the_optimizer_waits(committer: Recorder, held: Held) -> None:
    program = Program()
    with program.open(committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        before = program.state()
        assert held.reached.wait(120)
        program.backward()
        program.model[1].running_mean.add_(1)
        program.average.update_parameters(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), program.model[2])
        )
        child = os.fork()
        if child == 0:
            program.optimizer.zero_grad()
            program.optimizer.step()  # where nobody copies
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stepped = threading.Thread(target=program.optimizer.step)
        stepped.start()
        stepped.join(0.2)
        assert stepped.is_alive() and torch.equal(program.model[0].weight, before[0]["0.weight"])
        held.open.set()
        stepped.join(120)
        settled(checkpoint)
        assert committer.commits == [(1, 1)]
        assert_equal(saved(committer, 1), before)
        assert not torch.equal(program.model[0].weight, before[0]["0.weight"])


def test_memory_that_the_program_lets_go_is_copied_all_the_same(committer: Recorder, held: Held) -> None:
    program = Program()
    with program.open(committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        before = program.state()
        assert held.reached.wait(120)
        for states in program.optimizer.state.values():
            for one in states.values():
                one.data = one.detach().clone()
        taken = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(16)]
        held.open.set()
        settled(checkpoint)
        del taken
        assert committer.commits == [(1, 1)]
        assert_equal(saved(committer, 1), before)


def step_without_hooks(program: Program) -> None:
    type(program.optimizer).step.__wrapped__(program.optimizer)  # type: ignore[attr-defined]


@torch.no_grad()
def first_alone(program: Program) -> None:
    program.model[0].weight[WIDTH // 2, 1] += 1  # copied already


@torch.no_grad()
def last_alone(program: Program) -> None:
    program.optimizer.state[program.model[2].weight]["exp_avg_sq"].numpy()[WIDTH // 2, 1] = 7


WRITES: dict[str, Callable[[Program], Any]] = {
    "clamped by .data": lambda program: [p.data.clamp_(-0.001, 0.001) for p in program.model.parameters()],
    "an optimizer without hooks": step_without_hooks,
    "load_state_dict": lambda program: program.model.load_state_dict(Program().model.state_dict()),
    "one value, copied before": first_alone,
    "one value, not copied yet": last_alone,
}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_meanwhile_is_not_committed_and_the_next_step_is(
    committer: Recorder, held: Held, write: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program()
    with program.open(committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        assert held.reached.wait(120)
        program.backward()
        WRITES[write](program)
        held.open.set()
        settled(checkpoint)
        assert committer.commits == []
        held.reached.clear()
        held.open.clear()
        checkpoint.step()
        before = program.state()
        for p in program.model.parameters():
            p.data.add_(1)
        settled(checkpoint)
        assert committer.commits == [(2, 1)] and not held.reached.is_set()
        assert_equal(saved(committer, 2), before)
        committer.ask()
        checkpoint.step()
        settled(checkpoint)
        assert committer.commits == [(2, 1), (3, 2)] and not held.reached.is_set()
    assert [record.getMessage()[:56] for record in caplog.records] == [
        "step 1 is in no checkpoint, the next step will be: with "
    ]


@pytest.mark.parametrize("urgent", [True, False])
def test_at_the_end_all_is_saved(committer: Recorder, held: Held, urgent: bool) -> None:
    """Also if the last save in the background came to nothing. What is urgent waits for no optimizer."""
    program = Program()
    with program.open(committer) as checkpoint:
        committer.ask(urgent=urgent)
        checkpoint.step()
        if urgent:
            assert committer.commits == [(1, 1)] and not held.reached.is_set()
        else:
            assert held.reached.wait(120)
        first_alone(program)
        held.open.set()
    assert committer.commits == [(1, 1)]
    if not urgent:
        assert_equal(saved(committer, 1), program.state())
    assert not program.optimizer._optimizer_step_pre_hooks  # type: ignore[attr-defined]


def test_nobody_waits_for_a_copy_that_failed(committer: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    with program.open(committer) as checkpoint:
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> None:
                raise RuntimeError("the device is gone")

            patch.setattr(staging, "copy_large", fail)
            committer.ask()
            with pytest.raises(RuntimeError):
                checkpoint.step()
        program.backward()
        program.optimizer.step()
        committer.ask()
        checkpoint.step()
        before = program.state()
        program.optimizer.step()
        settled(checkpoint)
        assert committer.commits == [(2, 2)]
        assert_equal(saved(committer, 2), before)


def test_no_thread_to_save_in_is_said_and_nobody_waits_for_it(
    committer: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "spotburst-save":
            raise RuntimeError("can't start new thread")
        start(thread)

    program = Program()
    with program.open(committer) as checkpoint:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            committer.ask()
            with pytest.raises(CheckpointFailed, match=r"step 1 in \(can't start new thread\)"):
                checkpoint.step()
        assert checkpoint._saving is None
        program.optimizer.step()
        checkpoint.save()
        checkpoint.step()
        settled(checkpoint)
        assert committer.commits[-1][0] == 2


def test_an_optimizer_may_hold_what_has_no_address() -> None:
    """The rest is copied late all the same."""
    program = Program()
    program.optimizer.add_param_group({"params": [torch.sparse_coo_tensor(size=(2, 2)).requires_grad_()]})
    watched = overlap.Overlap([program.optimizer])
    target = torch.zeros(WIDTH * WIDTH)
    weight = program.model[0].weight.detach()
    now, late = watched.begin(target.data_ptr(), [(weight, 0, weight.nbytes)])
    assert late is not None and not now
    late.run()
    assert torch.equal(target.view_as(weight), weight)
    watched.close()


def test_memory_of_several_processes_is_copied_at_once(committer: Recorder, held: Held) -> None:
    program = Program()
    program.model.share_memory()
    program.optimizer = torch.optim.SGD(program.model.parameters(), lr=0.1)
    with program.open(committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        until(lambda: committer.commits)
        assert not held.reached.is_set()


@pytest.mark.parametrize("refused", ["at the beginning", "later"])
def test_where_the_kernel_tells_nothing_all_is_copied_at_once(
    committer: Recorder, held: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(overlap, "WriteTracker", refuse) if refused != "later" else None
    program = Program()
    with program.open(committer) as checkpoint:
        monkeypatch.setattr(WriteTracker, "begin", refuse)
        committer.ask()
        checkpoint.step()
        before = program.state()
        step_without_hooks(program)
        settled(checkpoint)
        assert_equal(saved(committer, 1), before)
    assert not held.reached.is_set()
    told = [record for record in caplog.records if "staging='overlap'" in record.getMessage()]
    assert len(told) == (refused != "later")


def test_a_word_that_staging_does_not_know_is_an_error(committer: Recorder) -> None:
    with pytest.raises(UsageError, match="overlp"):
        Checkpointer(model=torch.nn.Linear(2, 2), committer=committer, staging="overlp")  # type: ignore[arg-type]
