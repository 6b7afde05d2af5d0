"""The examples for other trainers: stopped and resumed they end with the same weights, by the same steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from job_wrapper.errors import ExitCode
from tests.unit.checkpoint.training import assert_equal

NAMES = ("lightning", "hf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    program = Path(__file__).with_name("example_program.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, program, folder, *NAMES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    (folder / "codes").write_text(done.stdout)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_an_example_goes_on_at_the_step(folder: Path, name: str) -> None:
    logs = {
        attempt: (folder / f"{name}-{attempt}.log").read_text() for attempt in ("undisturbed", "stopped", "resumed")
    }
    assert f"{name} 0 {int(ExitCode.REQUEUED)} 0\n" in (folder / "codes").read_text(), logs
    steps = {k: [line for line in text.splitlines() if line.startswith("step ")] for k, text in logs.items()}
    assert len(steps["stopped"]) >= 9
    assert steps["stopped"] + steps["resumed"] == steps["undisturbed"]
    weights = [torch.load(folder / f"{name}-{attempt}.pt") for attempt in ("resumed", "undisturbed")]
    assert_equal(*weights)
