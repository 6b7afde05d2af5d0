"""Random faults over one training run on the embedded cluster: nothing that was committed is lost, and the result is the undisturbed one's.

python -m tests.bench.bench_chaos [--faults N] [--seed S] [FOLDER]

Faults (``chaos_faults``): notice, silent loss, network cut, preemption, manager killed, slurmctld ended, store that fails, full disk. Some
are struck when the run has recovered from the one before, some while it has not. One line a fault. Exit code 1 where something was
not as it must be; FOLDER then has the logs. Needs root and Slurm.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from job_wrapper.store.io_types import Kind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.timeline import attempts
from tests.bench.chaos_faults import FAULTS, SILENT_DOWN, Planned, Stage, Struck, plan
from tests.bench.faults import Say, assert_kept, command, until_all_is_over
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed

STEPS = 20
"""Steps a fault; what is left of them after the last one is done at full speed."""
STEP_TIME = 1.0
PATIENCE = 240.0
"""Seconds within which the run must have recovered from a fault, else it counts as stuck."""
DISK = "256m"
ACKNOWLEDGED = re.compile(r"committed step (\d+) \(epoch (\d+), entry (\d+)\)")
"""What the wrapper says of a commit that the program has been told of."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own in ``folder``, to be filled. Made before any machine, since each sees the mounts of its birth."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def chaos(folder: Path, seed: int, faults: int, say: Say = print) -> None:
    """Strike, wait, finish, check. Raises ``AssertionError`` or ``TimeoutError`` where something was not as it must be."""
    say(f"seed {seed}, {faults} faults")
    began = time.monotonic()
    steps = STEPS * max(faults, 2)
    with small_disk(folder / "disk") as disk, ThreadPoolExecutor(1) as beside:
        reference = beside.submit(undisturbed, folder / "undisturbed", steps)
        (disk / "store").mkdir()
        settings = default_settings(4, grace_time=30, suspend_time=15)
        settings["checkpoints"] = {"interval": "2s", "uri": f"file://{disk}/store"}
        # The bounds are for runs that get on; here every attempt may meet a fault of its own.
        settings["recovery"] = {"max_attempts": 10 * faults, "barren_attempts": 20}
        settings["manager"] = {"silent_prepare": "3s", "silent_down": f"{SILENT_DOWN:g}s"}
        with LocalCluster(folder / "cluster", settings) as cluster:
            pace = Pace(folder)
            job = Training(
                cluster, steps, STEP_TIME, folder / "out", environment={"TRAIN_PYTHON": str(pace.program)}
            ).submit()
            stage = Stage(cluster, job, disk)
            recovered(stage, Struck("start"), 0.0, 0)
            for number, planned in enumerate(plan(seed, faults), 1):
                say(f"{number:3} {strike(stage, planned)}")
            finish(stage, pace, steps)
            check(stage, reference.result())
    made = attempts(stage.entries())
    commits = sum(a.commits for a in made)
    say(
        f"seed {seed}: {faults} faults in {(time.monotonic() - began) / 60:.0f} min; {len(made)} attempts, {commits} commits, all kept; "
        f"{steps} steps, bit-identical to the undisturbed run; no machine is left, no job is stuck"
    )


class Pace:
    """Slow steps while faults are struck, then as fast as it goes: the pace is read by each attempt when it starts."""

    def __init__(self, folder: Path) -> None:
        self.file, self.program = folder / "pace", folder / "paced-python"
        self.file.write_text(f"{STEP_TIME}")
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --step-time "$(cat {self.file})"\n')
        self.program.chmod(0o755)

    def full_speed(self) -> None:
        """From the next attempt on."""
        self.file.write_text("0")


def strike(stage: Stage, planned: Planned) -> str:
    """One fault and what came of it, as a line."""
    for _ in stage.watch(planned.pause):
        pass
    epoch, at = stage.newest().epoch, time.time()
    struck = FAULTS[planned.kind](stage, planned.first, planned.second)
    came = recovered(stage, struck, at, epoch) if planned.after_recovery else "not waited for"
    return f"{time.strftime('%H:%M:%S', time.gmtime(at))}  {struck.text:46}  {came}"


def recovered(stage: Stage, struck: Struck, at: float, epoch: int) -> str:
    """Wait until the run commits again after the fault's end, in a new attempt where it needs one; what came of it, in words."""
    over = at + struck.lasts
    for _ in stage.watch(PATIENCE):
        if stage.ended():
            raise AssertionError(f"the training ended while faults were struck: {stage.entries()[-1].body}")
        if not stage.seen:
            continue
        now = stage.newest()
        if (now.last_commit or 0.0) > over and (now.epoch > epoch or not struck.moves):
            after = (now.last_commit or 0.0) - at
            if now.epoch == epoch:
                return f"attempt {epoch} goes on, at step {now.last_step} after {after:.1f} s"
            since = [e for e in attempts(stage.entries()) if epoch <= e.epoch < now.epoch]
            why = ", ".join(e.why for e in since)
            return f"attempt {now.epoch} on {now.node} from step {now.restored_step} ({why}), at {now.last_step} after {after:.1f} s"
    raise TimeoutError(
        f"stuck: no commit within {PATIENCE:g} s after: {struck.text}\n{stage.job.output[-3000:]}\n{stage.cluster.diagnostics()}"
    )


def finish(stage: Stage, pace: Pace, steps: int) -> None:
    """Undo what still lasts, let the run recover, and have the rest done at full speed."""
    for _ in stage.watch(PATIENCE):
        if not stage.due.acts:
            break
    recovered(stage, Struck("the last fault"), time.time(), stage.newest().epoch)
    pace.full_speed()
    stage.cluster.run("scontrol", "requeue", stage.job.job)
    stage.job.until_finished(
        300.0 + steps
    )  # a step takes a fifth of a second on two processors that are not busy otherwise
    stage.look()


def check(stage: Stage, reference: Path) -> None:
    """What must hold at the end. Raises ``AssertionError`` or ``TimeoutError`` that says what does not."""
    entries = {e.seq: e for e in stage.job.entries()}
    assert_kept(stage.seen, entries.values())
    told = {tuple(map(int, match.groups())) for match in ACKNOWLEDGED.finditer(stage.job.output)}
    kept = {(e.body["step"], e.epoch, e.seq) for e in entries.values() if e.kind is Kind.COMMIT}
    assert told and told <= kept, f"acknowledged (step, epoch, entry), and not in the log: {sorted(told - kept)}"
    assert_no_commit_lost(list(entries.values()))
    assert_same(stage.job.out, reference)
    until_all_is_over(stage.cluster)


def main() -> int:
    """Print the lines."""
    return command(__doc__, 100, chaos)


if __name__ == "__main__":
    sys.exit(main())
