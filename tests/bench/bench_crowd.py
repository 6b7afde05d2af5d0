"""Random faults over many small jobs at once: single ones, arrays, gangs, exclusive ones, nodes that boot slowly.

python -m tests.bench.bench_crowd [--faults N] [--seed S] [--slurm 22.05|24.11] [FOLDER]

``bench_chaos`` compares every bit of one training; this looks for what only happens among many: nodes that are ended, booted and wanted
at the same moment, acts of people and administrators between them. Each program counts until it is told to end. One line a fault. Exit
code 1 where a job did not come back from its newest checkpoint, did not end well, or something is left; FOLDER then has the logs.
Needs root and Slurm.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.bench.crowd_faults import FAULTS, Crowd
from tests.bench.faults import Say, assert_kept, command, until_all_is_over
from tests.cluster.conftest import PATIENT
from tests.cluster.counting import Handle, Stage
from tests.cluster.playing import slurm_root
from tests.cluster.training import assert_no_commit_lost
from tests.fixtures.private_slurm import VERSIONS

NODES, SLOW = 20, 4
SILENT_DOWN = 12
PATIENCE = 700.0
"""Seconds within which every job must run and commit again once the last fault is over: refusals may have made the manager wait for minutes."""


def settings(faults: int) -> dict[str, object]:
    """``bench_chaos`` on more nodes, some of which take 20 s to boot."""
    plan = default_settings(NODES, gpus=0, grace_time=30, suspend_time=20, zones=("a", "b", "c"))
    (spot,), (first, urgent) = plan["nodesets"], plan["partitions"]
    plan["providers"]["slow"] = {**plan["providers"]["local"], "boot_time": 20}
    offerings = [{**o, "provider": "slow"} for o in spot["offerings"]]
    plan["nodesets"] = [spot, {**spot, "name": "slow", "nodes": f"slow-[1-{SLOW}]", "offerings": offerings}]
    plan["partitions"] = [
        first,
        {"name": "grace10", "nodesets": ["spot"], "grace_time": 10},
        {"name": "slow", "nodesets": ["slow"], "grace_time": 10},
        {**urgent, "nodesets": ["spot", "slow"]},
    ]
    plan["checkpoints"] = {"interval": "3s"}
    # The bounds are for runs that get on; here every attempt may meet a fault of its own.
    plan["recovery"] = {"max_attempts": 10 * faults, "max_attempts_multi_node": 10 * faults, "barren_attempts": 50}
    plan["manager"] = {"silent_prepare": "4s", "silent_down": f"{SILENT_DOWN}s"}
    return plan


FIRST_COUNTS = """\
[ "$SLURM_PROCID" -eq 0 ] && exec bash "$@"
until [ -e "$2" ]; do sleep 0.4; done
"""
"""A gang's state directory is its first task's."""


def submit(stage: Stage) -> list[Handle]:
    """All jobs, none of which has begun."""
    line = stage.wrapped()
    first = stage.cluster.root / "first.sh"
    first.write_text(FIRST_COUNTS)
    # These tasks do not talk to each other, so that none would miss another one that was killed.
    gang = stage.wrapped(srun="srun --kill-on-bad-exit").replace("-- bash ", f"-- bash {first} ")
    ids = [stage.submit(line).id for _ in range(4)]
    ids += [stage.submit(line, "--partition=grace10").id for _ in range(2)]
    ids += [stage.submit(line, "--exclusive").id, stage.submit(line, "--partition=slow").id]
    array = stage.submit(line, "--array=1-3").id
    ids += [f"{array}_{task}" for task in (1, 2, 3)]
    ids += [stage.submit(gang, "--nodes=2", "--ntasks-per-node=1").id for _ in range(2)]
    return [Handle(stage, known) for known in ids]


def crowd(folder: Path, seed: int, faults: int, version: str, say: Say = print) -> None:
    """Strike, let all come back, end, check. Raises ``AssertionError`` or ``TimeoutError`` where something was not as it must be."""
    say(f"seed {seed}, {faults} faults, Slurm {version}")
    began = time.monotonic()
    root = slurm_root(version)
    with LocalCluster(folder / "cluster", settings(faults), slurm_root=root, more=(PATIENT,)) as cluster:
        stage = Stage(cluster, version)
        here = Crowd(stage, submit(stage), random.Random(seed))
        here.until_all_commit(PATIENCE)
        kinds: list[str] = []
        for number in range(1, faults + 1):
            kinds = kinds or here.chance.sample(list(FAULTS), len(FAULTS))
            kind = kinds.pop()
            try:
                text = FAULTS[kind](here)
            except LocalCloudError as error:  # the machine that was chosen has ended meanwhile
                text = f"{kind}: {error}"
            say(f"{number:3} {time.strftime('%H:%M:%S')}  {text}")
            here.rest(here.chance.choice((0.5, 2.0, 8.0)) * here.chance.random())
        here.undo_all()
        since = time.time()
        here.until_all_commit(PATIENCE, since)
        say(
            f"    {time.strftime('%H:%M:%S')}  all {len(here.jobs)} jobs have committed again, {time.time() - since:.0f} s after the last fault"
        )
        check(here)
    attempts = sum(len(job.starts) for job in here.jobs)
    say(
        f"seed {seed}: {faults} faults in {(time.monotonic() - began) / 60:.0f} min; {len(here.jobs)} jobs, {attempts} starts, each from "
        "its run's newest checkpoint; all completed, no commit lost, no machine left, no node unusable"
    )


def check(here: Crowd) -> None:
    """What must hold at the end. Raises ``AssertionError`` or ``TimeoutError`` that says what does not."""
    for job in here.jobs:
        job.finish(PATIENCE)
        entries = job.entries()
        assert_kept(here.seen[job.id], entries)
        assert_no_commit_lost(entries)
        assert job.starts == sorted(job.starts), f"job {job.id} went back: {job.starts}"
    until_all_is_over(here.cluster)


def main() -> int:
    """Print the lines."""
    return command(__doc__, 60, crowd, slurm=VERSIONS)


if __name__ == "__main__":
    sys.exit(main())
