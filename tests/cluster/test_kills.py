"""``kill -9`` of the wrapper, of the training program and of the manager, at random moments, twenty times."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

KILLS = 20
STEPS = 600
STEP_TIME = 0.4
"""Seconds, until the last kill."""


def find(cluster: LocalCluster, job: str, what: str) -> int | None:
    """Pid of the wrapper or program of that cluster's job. Other clusters on this host have jobs of the same number."""
    mine = {f"SLURM_JOB_ID={job}".encode(), b"SLURM_STEP_ID=0", f"SLURM_CONF={cluster.slurm_conf}".encode()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                environment = (folder / "environ").read_bytes().split(b"\0")
                if not mine <= set(environment):
                    continue
                wrapper = b"run" in command and any(c.endswith(b"/spotburst") for c in command[:3])
                program = not wrapper and any(c.endswith(b"train.py") for c in command[:3])
                if (what == "wrapper" and wrapper) or (what == "program" and program):
                    return int(folder.name)
    return None


def unknown(cluster: LocalCluster) -> set[str]:
    """Nodes whose machine runs, though Slurm takes them for powered down."""
    known = {n.name for n in cluster.client().nodes() if not n.has("POWERED_DOWN")}
    young = time.time() - 5
    machines = {i.node for i in cluster.cloud().instances() if i.state is InstanceState.RUNNING and i.launched < young}
    return machines - known


def test_twenty_kills(make_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
    """No commit is lost, the result is bit-identical, and no machine is left that Slurm does not know."""
    seed = int(os.environ.get("SPOTBURST_TEST_SEED") or random.randrange(1 << 30))
    print(f"SPOTBURST_TEST_SEED={seed}")
    chance = random.Random(seed)
    plan = default_settings(2, suspend_time=15)
    plan["checkpoints"] = {"interval": "1s"}
    plan["recovery"] = {"max_attempts": 100, "barren_attempts": 20}
    cluster = make_cluster(settings=plan)
    job = Training(cluster, STEPS, STEP_TIME, tmp_path / "out").submit()
    job.until_step(1)
    killed: dict[str, int] = {"wrapper": 0, "program": 0, "manager": 0}
    while sum(killed.values()) < KILLS:
        what = chance.choice(["wrapper", "program", "manager"])
        # A moment in the attempt's life, not always its first: an attempt that is killed before it claims, three times over, is given up.
        cluster.wait_for(lambda: find(cluster, job.job, "wrapper") or job.state() == "COMPLETED", 180, "an attempt")
        time.sleep(chance.uniform(0.0, 6.0))
        if what == "manager":
            cluster.kill_manager()
            time.sleep(chance.uniform(0.0, 1.0))
            cluster.start_manager()
        else:
            pid = cluster.wait_for(
                lambda what=what: find(cluster, job.job, what) or job.state() == "COMPLETED", 180, f"the {what}"
            )
            if pid is True:
                pytest.fail(f"the training ended after {killed}: make it longer")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed[what] += 1
        # A manager that was just killed may not have ended yet what Slurm has powered down.
        cluster.wait_for(lambda: not unknown(cluster), 60, f"no machine that Slurm does not know, after {killed}")
    job.until_finished(600)
    entries = job.entries()
    assert_no_commit_lost(entries)
    assert_same(tmp_path / "out", undisturbed(tmp_path / "undisturbed", STEPS))
    assert len(job.attempts()) > 1
    cluster.wait_for(
        lambda: not [i for i in cluster.cloud().instances() if i.state is not InstanceState.GONE],
        240,
        "no machine left",
    )
