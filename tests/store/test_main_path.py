"""The wrapper and the Checkpointer as users run them, outside Slurm, with checkpoints in Azure Blob and Google Cloud Storage: killed with
SIGKILL in the middle, started again, and the same as undisturbed at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_wrapper.store.io_types import Kind
from tests.fixtures.server import Server
from tests.store.conftest import use
from tests.unit.run.conftest import Room

PROGRAM = """
import os, time, torch
from job_wrapper.checkpoint import Checkpointer

torch.manual_seed(1)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.Adam(model.parameters())
with Checkpointer(model=model, optimizer=optimizer) as checkpoint:
    print("from", checkpoint.completed, flush=True)
    while checkpoint.completed < 40:
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
        time.sleep(float(os.environ.get("STEP", "0")))
        checkpoint.step()
print("sum", model.weight.double().sum().item().hex(), flush=True)
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    for process in room.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The last line of the program's output when it runs alone, without the wrapper."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.s3
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["azurite", "gcs"])
def test_a_training_that_is_killed_goes_on(
    kind: str, room: Room, undisturbed: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    use(monkeypatch, {**server.environment, "OMP_NUM_THREADS": "1"})
    room.uri = f"{server.uri}/{os.urandom(6).hex()}"
    run = "c/disturbed/main"
    # So slow that it is far from its end when it has committed twice.
    first = room.start(PROGRAM, "--run", "disturbed", "--interval", "0.3s", slurm=False, STEP="2")
    room.wait_for(lambda: len(room.commits(run)) >= 2, 180)
    first.send_signal(signal.SIGKILL)  # its program dies with it
    first.wait()
    code, out, err = room.end(room.start(PROGRAM, "--run", "disturbed", slurm=False), 300)
    assert code == 0, err
    begun, ended = out.splitlines()
    assert 0 < int(begun.split()[1]) < 40
    assert ended == undisturbed
    assert room.kinds(run)[-1] == "end" and room.kinds(run).count("claim") == 2
    # Only the final checkpoint stays, and a third start finds that nothing is left to do.
    assert [e.kind for e in room.log(run)].count(Kind.END) == 1
    assert room.end(room.start(PROGRAM, "--run", "disturbed", slurm=False), 120)[0] == 0
