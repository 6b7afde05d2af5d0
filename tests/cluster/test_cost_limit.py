"""A run reaches its cost limit on a real Slurm: it commits, is held, and goes on from there once the limit is raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Kind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.slurm.records import Job
from tests.cluster.counting import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PRICES = """\
date: 2026-01-02
machines: [{provider: local, instance_type: small-1g, spot: 360, on_demand: 900}]
"""
"""A tenth a second, so 6 are kept back for the last checkpoint."""
LIMIT = 9.0
SCRIPT = """#!/bin/sh
srun spotburst run --state-dir /run/kept -- sh -c 'cd /run/kept; while echo >> lines; do sleep 0.2; done'
"""


def test_a_run_is_held_at_its_limit_with_its_checkpoint(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    cluster = make_cluster(settings={**default_settings(1), "prices": str(prices), "checkpoints": {"interval": "60s"}})
    # Up before it is paid for: a node that boots for a job waits for Slurm's tick, which may cost more than there is.
    Stage(cluster, "22.05").boot(["spot-1"])
    job_id = cluster.submit(SCRIPT, f"--comment=mine cost_limit={LIMIT:g}")

    def shown() -> Job:
        return next(j for j in cluster.client().jobs() if j.name_id == job_id)

    def held() -> bool:
        return shown().has("PENDING") and not shown().has("COMPLETING") and shown().priority == 0

    cluster.wait_for(held, 240, "the run to be held")
    job = shown()
    assert job.comment.startswith("mine cost_limit=9 | spotburst: CostLimit: 9 is all but spent"), job.comment
    assert job.reason != "JobHeldAdmin", "its owner may let it go"
    log = RunLog(open_store(cluster.config.checkpoints.uri, prove=False), f"{cluster.config.cluster}/{job_id}/main")
    assert log.entries()[-1].kind is Kind.SUSPENDED
    assert log.entries()[-1].summary.commits, "its last checkpoint"
    charged = json.loads(cluster.run("spotburst", "describe", job_id, "--json"))["charged"]
    assert charged["limit"] == LIMIT
    assert 0.0 < charged["spent"] <= LIMIT

    cluster.run("scontrol", "update", f"JobId={job_id}", "Comment=cost_limit=1000")
    cluster.run("scontrol", "release", job_id)
    cluster.wait_for(lambda: log.entries()[-1].epoch == 2, 240, "the next attempt")
