"""Saves that the program waits for: from its own memory, and what happens where there is none for a copy."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from job_wrapper.checkpoint import Checkpointer, memory
from job_wrapper.checkpoint.checkpointer import PART
from job_wrapper.checkpoint.loading import read_state
from job_wrapper.checkpoint.memory import NoRoomError, Pages, available
from job_wrapper.checkpoint.saver import SKELETON, Save
from tests.unit.checkpoint.test_checkpointer import Gate, Recorder, gated
from tests.unit.checkpoint.training import assert_equal, open_run

shapes = st.lists(st.integers(0, 70), max_size=3)
kinds = st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.complex64, torch.bool])
tensors = st.builds(
    lambda shape, dtype, how: how(torch.arange(int(torch.tensor(shape).prod())).reshape(shape).to(dtype)),
    shapes,
    kinds,
    st.sampled_from(
        [
            lambda t: t,
            lambda t: t.mT if t.dim() > 1 else t,
            lambda t: t.conj(),
            lambda t: t.conj().imag if t.is_complex() else t,
        ]
    )
    | st.just(lambda t: t[::2] if t.dim() and t.numel() else t),
)


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tensors, max_size=30), st.integers(0, 40))
def test_a_streamed_save_holds_what_a_staged_one_does(
    tmp_path_factory: pytest.TempPathFactory, some: list[torch.Tensor], alike: int
) -> None:
    state = {f"t{n}": tensor for n, tensor in enumerate(some)}
    state |= {f"alike{n}": torch.full((16, 3), float(n)) for n in range(alike)}
    state["big"] = torch.arange(2_200_000)  # more than one segment
    folder = tmp_path_factory.mktemp("run")
    found, items = {}, {}
    for name, staging in (("staged", True), ("streamed", False)):
        committer = open_run(folder, name)
        with Checkpointer(state=state, committer=committer, staging=staging) as checkpoint:
            committer.ask()
            checkpoint.step()
            checkpoint._wait_in_flight()
        (commit,) = committer._claim.entry.summary.commits
        loaded = read_state(committer.store, commit.manifest, PART)
        found[name] = loaded.tree["state"]["state"]
        items[name] = {i.name: [s.checksum for s in i.segments] for i in loaded.part.items if i.name != SKELETON}
    assert items["streamed"] == items["staged"]  # so that what is unchanged is found to be
    assert_equal(found["streamed"], found["staged"])
    assert_equal(found["staged"], {name: in_order(tensor) for name, tensor in state.items()})


@pytest.fixture
def committer(tmp_path: Path) -> Recorder:
    return Recorder.open(f"file://{tmp_path}", "test")  # type: ignore[return-value]


def test_a_save_that_is_interrupted_while_the_program_waits_is_not_committed(
    committer: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate: Gate = gated(committer)
    x = torch.zeros(1 << 20)
    checkpoint = Checkpointer(x=x, committer=committer)
    committer.ask(urgent=True)
    wait = Save.wait

    def interrupted(save: Save) -> None:
        waits = save.done.wait

        def interrupt() -> bool:
            """In ``wait``, and not before it."""
            threading.Thread(target=lambda: (gate.reached.wait(120), os.kill(os.getpid(), signal.SIGINT))).start()
            return waits()

        patch.setattr(save.done, "wait", interrupt)
        wait(save)

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(Save, "wait", interrupted)
        checkpoint.step()
    x += 1  # the program goes on: what is being written is no state of it any more
    gate.open.set()
    checkpoint._wait_in_flight()
    assert committer.commits == []
    checkpoint.step()
    checkpoint.close()
    assert committer.commits == [(2, None)]


def test_a_save_that_is_interrupted_before_the_program_waits_is_not_committed(
    committer: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate: Gate = gated(committer)

    def interrupted(save: Save) -> None:
        raise KeyboardInterrupt

    x = torch.zeros(1 << 20)
    checkpoint = Checkpointer(x=x, committer=committer)
    committer.ask(urgent=True)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Save, "wait", interrupted)
        checkpoint.step()
    x += 1
    gate.open.set()
    checkpoint._wait_in_flight()
    assert committer.commits == []
    checkpoint.close()
    assert committer.commits == [(1, None)]


def test_without_room_for_a_copy_training_waits_for_the_save_and_is_told_why(
    committer: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1 << 20)
    x = torch.ones(1 << 20)
    with Checkpointer(x=x, committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        assert committer.commits == [(1, 1)]
        assert "4 MiB are needed and 1 MiB are free" in caplog.text
        assert "--mem" in caplog.text
        monkeypatch.undo()
        committer.ask()
        x += 1
        checkpoint.step()  # there is room again
        checkpoint._wait_in_flight()
    assert committer.commits == [(1, 1), (2, 2)]
    assert read_state(
        committer.store, committer._claim.entry.summary.commits[-1].manifest, PART
    ).tree["state"]["x"].eq(2).all()  # fmt: skip


def test_pages_are_not_touched_beyond_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 20 << 20)
    pages = Pages(16 << 20)
    pages.touch(16 << 20)
    assert pages.touched >= 16 << 20
    with pytest.raises(NoRoomError, match="are needed and 20 MiB are free"):
        pages.touch(40 << 20)


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_what_is_free_is_the_least_that_the_machine_and_the_jobs_limits_leave(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert available(proc, groups) is None
    _write(proc, meminfo="MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert available(proc, groups) == 8000 << 10
    _write(proc / "self", cgroup="0::/job/step\n")
    assert available(proc, groups) == 8000 << 10
    # Version 2: the step has no limit, its job has one, and half of what it uses is cache.
    _write(groups / "job/step", memory__max="max\n", memory__current="4000000\n", memory__stat="inactive_file 0\n")
    _write(
        groups / "job", memory__max="5000000", memory__current="4000000", memory__stat="anon 1\ninactive_file 2000000"
    )
    assert available(proc, groups) == 3000000
    # Version 1.
    _write(proc / "self", cgroup="4:cpu:/x\n3:memory:/slurm/job\n")
    _write(
        groups / "memory/slurm/job",
        memory__limit_in_bytes="1000000",
        memory__usage_in_bytes="700000",
        memory__stat="total_inactive_file 100000\ntotal_active_file 1\n",
    )
    assert available(proc, groups) == 400001
    _write(groups / "memory/slurm/job", memory__usage_in_bytes="2000000")
    assert available(proc, groups) == 0
