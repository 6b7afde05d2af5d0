"""The object store goes away while a job trains, and again at a reclaim: the job is not lost, and ends bit for bit as if it had not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed
from tests.fixtures.addresses import host_address
from tests.fixtures.seaweedfs import seaweedfs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

MakeCluster = Callable[..., LocalCluster]
OUTAGE = float(os.environ.get("SPOTBURST_TEST_OUTAGE", "8"))
"""Seconds. An S3 client gives one request up after about 90."""
STEP_TIME = 0.5
STEPS = int((OUTAGE + 180) / STEP_TIME)
"""Until the last outage is over; then it goes faster."""


def test_store_that_goes_away_in_training_and_at_a_reclaim(make_cluster: MakeCluster, tmp_path: Path) -> None:
    reference = undisturbed(tmp_path / "undisturbed", STEPS)
    plan = default_settings(nodes=3, notice=12)
    with host_address("10.76.0.3") as address, seaweedfs(tmp_path / "s3", ip=address) as server:
        plan["checkpoints"] = {"interval": "2s", "uri": f"{server.uri}/runs", "endpoint_url": server.endpoint_url}
        keys = {k: v for k, v in server.environment.items() if k != "AWS_ENDPOINT_URL"}
        os.environ.update(keys)
        try:
            cluster = make_cluster(settings=plan)
            job = Training(cluster, STEPS, STEP_TIME, tmp_path / "out").submit()
            job.until_step(20)
            node = job.node()
            server.kill()
            time.sleep(OUTAGE)
            assert job.state() == "RUNNING"
            server.start()
            step = job.attempts()[-1].last_step or 0
            job.until_step(step + 1, timeout=300)
            assert len(job.attempts()) == 1, "the outage was no interruption"

            server.kill()
            cluster.cloud().reclaim(node)
            # The first attempt has its claim, and says it in other words.
            cluster.wait_for(lambda: "the store does not answer" in job.output, 240, "the next attempt")
            server.start()
            job.until_finished()
            entries = job.entries()
        finally:
            for key in keys:
                os.environ.pop(key, None)
    assert_same(tmp_path / "out", reference)
    assert_no_commit_lost(entries)
    assert {entry.epoch for entry in entries} == {1, 2}
