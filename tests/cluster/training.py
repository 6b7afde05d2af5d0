"""The example's training on a test cluster: submit it, watch its log, compare it with one that nobody touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.timeline import Attempt, attempts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PACED = Path(__file__).with_name("paced_train.py")


@dataclass
class Training:
    """One job that runs examples/train.py under the wrapper. ``step_time``: seconds a step until ``until_finished`` is called."""

    cluster: LocalCluster
    steps: int
    step_time: float
    out: Path
    name: str = "main"
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    job: str = ""

    def submit(self) -> Training:
        """``sbatch examples/train.sbatch``."""
        arguments = ["--steps", self.steps, "--step-time", self.step_time, "--out", self.out]
        answer = self.cluster.run(
            *("sbatch", "--parsable", f"--output={self.cluster.root}/jobs/%j.out", *self.options),
            *(EXAMPLES / "train.sbatch", *map(str, arguments)),
            env={
                "TRAIN": str(PACED),
                "TRAIN_PYTHON": sys.executable,
                "TRAIN_HURRY": str(self.hurry),
                **self.environment,
            },
        )
        self.job = answer.strip()
        return self

    @property
    def hurry(self) -> Path:
        """The file that ends the slow steps."""
        return self.out.with_name(f"{self.out.name}-hurry")

    @property
    def run(self) -> str:
        """Path of the run in the store."""
        return f"{self.cluster.config.cluster}/{self.job}/{self.name}"

    @property
    def output(self) -> str:
        """What the job has printed so far."""
        return self.cluster.output(self.job)

    def entries(self) -> list[Entry]:
        """The run's log so far."""
        checkpoints = self.cluster.config.checkpoints
        store = open_store(checkpoints.uri, endpoint_url=checkpoints.endpoint_url or "", prove=False)
        return RunLog(store, self.run).entries()

    def attempts(self) -> list[Attempt]:
        """The run's attempts so far."""
        return attempts(self.entries())

    def state(self) -> str:
        """The job's state as squeue shows it; "" once Slurm has forgotten it."""
        return self.cluster.run("squeue", "-h", "-t", "all", "-j", self.job, "-o", "%T", check=False).strip()

    def until_step(self, step: int, timeout: float = 240) -> None:
        """Wait until a checkpoint at or after that step is committed by the newest attempt."""

        def there() -> bool:
            made = self.attempts()
            return bool(made) and (made[-1].last_step or 0) >= step

        self.cluster.wait_for(there, timeout, f"a commit of job {self.job} at step {step} or later")

    def until_epoch(self, epoch: int, timeout: float = 240) -> None:
        """Wait until that attempt has its checkpoint loaded and has committed."""

        def there() -> bool:
            made = self.attempts()
            return len(made) >= epoch and made[epoch - 1].commits > 0

        self.cluster.wait_for(there, timeout, f"attempt {epoch} of job {self.job}")

    def until_finished(self, timeout: float = 300) -> None:
        """Nothing more is to happen to it: let it do what is left, and wait until Slurm says that the job is completed and the log that the
        run has ended."""
        self.hurry.touch()
        self.cluster.wait_for(
            lambda: self.entries()[-1].kind is Kind.END and self.state() in ("COMPLETED", ""),
            timeout,
            f"the end of job {self.job}",
        )
        assert self.entries()[-1].body["exit_code"] == 0

    def node(self) -> str:
        """Where the newest attempt runs."""
        return self.attempts()[-1].node


def undisturbed(folder: Path, steps: int) -> Path:
    """The same training in this process's own environment, without Slurm and without spotburst."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SPOTBURST"))}
    command = [sys.executable, EXAMPLES / "train.py", "--steps", str(steps), "--out", folder]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder


def assert_same(one: Path, other: Path) -> None:
    """Weights, optimizer state and the sample ids of every step, bit for bit."""
    samples = [[json.loads(line) for line in (p / "samples.jsonl").read_text().splitlines()] for p in (one, other)]
    assert samples[0] == samples[1]
    left, right = (torch.load(p / "final.pt", weights_only=True) for p in (one, other))
    assert_equal(left, right, "")


def assert_equal(left: object, right: object, path: str) -> None:
    """Nested dicts and lists of tensors and numbers, bit for bit."""
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape, path
        assert left.reshape(-1).view(torch.uint8).equal(right.reshape(-1).view(torch.uint8)), path
    elif isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_equal(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        assert len(left) == len(right), path
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_equal(a, b, f"{path}.{index}")
    else:
        assert repr(left) == repr(right), path


def assert_no_commit_lost(entries: list[Entry]) -> None:
    """Each attempt went on from the newest commit that the log held when it claimed; sequence numbers have no gap."""
    assert [e.seq for e in entries] == list(range(len(entries)))
    newest: int | None = None
    for attempt in attempts(entries):
        if attempt.resumed is not None or attempt.restored_step is not None:
            assert attempt.restored_step == newest, f"epoch {attempt.epoch}"
        if attempt.last_step is not None:
            assert newest is None or attempt.last_step >= newest
            newest = attempt.last_step
    epochs = [e.epoch for e in entries]
    assert epochs == sorted(epochs), "an older epoch wrote after a newer one had claimed"
