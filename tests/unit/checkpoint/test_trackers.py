"""docs/training.md's lines for trackers, with the trackers themselves: both attempts of a run write to one run of theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.pages import ROOT, block

PROGRAM = """\
import os
import signal
import sys
import time

import mlflow
import torch
import wandb

from job_wrapper.checkpoint import Checkpointer

wandb_lines, mlflow_lines = sys.argv[1:]
model = torch.nn.Linear(1, 1)
with Checkpointer(model=model, data=False) as checkpoint:
    exec(wandb_lines)
    exec(mlflow_lines)
    print("ids", wandb.run.id, mlflow.active_run().info.run_id, flush=True)
    end = checkpoint.completed + 3 if checkpoint.restored else 1000
    while checkpoint.completed < end:
        step = checkpoint.completed + 1
        wandb.log({"step": step}, step=step)
        mlflow.log_metric("step", step, step=step)
        if step == 3 and not checkpoint.restored:
            os.kill(os.getppid(), signal.SIGTERM)  # the wrapper asks for a last checkpoint, and the program ends within a step
        time.sleep(0.05)
        checkpoint.step()
history = mlflow.MlflowClient().get_metric_history(mlflow.active_run().info.run_id, "step")
print("steps", *(int(metric.value) for metric in history))
"""


@pytest.mark.timeout(1500)  # each attempt imports torch, mlflow and wandb
def test_both_attempts_are_one_run_of_each_tracker(tmp_path: Path) -> None:
    program, store = tmp_path / "program.py", tmp_path / "store"
    program.write_text(PROGRAM, encoding="utf-8")
    store.mkdir()
    lines = [block("docs/training.md", "python", f"{tracker}.") for tracker in ("wandb", "mlflow")]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SPOTBURST", "WANDB", "MLFLOW"))}
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB__SERVICE_WAIT": "600",  # seconds for its own service to start; of itself it gives up after 30
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
    }
    spotburst = Path(sys.executable).with_name("spotburst")
    ids, outputs = [], []
    for code in (128 + signal.SIGTERM, 0):
        done = subprocess.run(
            [spotburst, "run", "--uri", store.as_uri(), "--run", "mine", "--", sys.executable, program, *lines],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=700,
            check=False,
        )
        assert done.returncode == code, done.stdout
        outputs.append(done.stdout)
        ids.append([line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ids ")])
    assert ids[0] == ids[1]
    (steps,) = [line.split()[1:] for line in outputs[1].splitlines() if line.startswith("steps ")]
    assert steps == [str(n) for n in range(1, len(steps) + 1)], "one curve, each step once"
    assert len(steps) >= 6
    ((of_wandb, _),) = ids[0]
    folders = sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert [name.rpartition("-")[2] for name in folders] == [of_wandb, of_wandb], "`wandb sync` joins folders of one id"
