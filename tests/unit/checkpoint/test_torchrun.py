"""Whose SIGTERM it is: torchrun's ends a rank at once, Slurm's does not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from job_wrapper.store import RunLog, open_store

ROOT = Path(__file__).parents[3]


def start(folder: Path, how: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = "import sys; from job_wrapper.run import main; sys.exit(main())"
    wrapper = [sys.executable, "-c", run, "--uri", f"file://{folder}/store", "--run", "r", "--"]
    program = [Path(__file__).with_name("torchrun_program.py"), folder, how]
    process = subprocess.Popen(
        [*wrapper, *torchrun, *program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 300
    while not list(folder.glob("began-*")):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)
    return process


def tree(pid: int) -> list[int]:
    """That process and all below it."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in below for each in tree(int(child)))]


@pytest.mark.timeout(900)
def test_a_rank_ends_when_torchrun_says_so_because_another_has_failed(tmp_path: Path) -> None:
    process = start(tmp_path, "fail")
    (tmp_path / "now").touch()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert "forcefully exiting" not in said, "torchrun has waited in vain and killed it"


@pytest.mark.timeout(900)
def test_a_signal_to_every_process_of_the_job_is_outlived_by_the_save(tmp_path: Path) -> None:
    process = start(tmp_path, "train")
    for pid in tree(process.pid):
        with contextlib.suppress(ProcessLookupError):  # those that were told first may be through
            os.kill(pid, signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, said
    (commit,) = (
        RunLog(open_store(f"file://{tmp_path}/store", prove=False), "local/r/main").entries()[-1].summary.commits
    )
    assert commit.step is not None and commit.step > 0
