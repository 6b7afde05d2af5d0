"""The whole way from a notice to the resumed job on machines whose metadata speaks Google's and Azure's dialect, with 30 s of notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.store.io_types import Kind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster.training import Training, assert_no_commit_lost, assert_same, undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

STEPS = 150
DIALECTS = ("gcp", "azure")


def test_reclaimed_in_each_dialect(make_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
    """One cluster with a provider a dialect; a job on each, at the same time: urgent commit, requeue, resumed, bit-identical."""
    plan = default_settings(2, notice=30)
    local, (nodeset,), (partition, _) = plan["providers"]["local"], plan["nodesets"], plan["partitions"]
    plan["checkpoints"] = {"interval": "1s"}
    plan["providers"] = {name: {**local, "speaks": name} for name in DIALECTS}
    plan["nodesets"] = [
        {
            **nodeset,
            "name": name,
            "nodes": f"{name}-[1-2]",
            "offerings": [{**o, "provider": name} for o in nodeset["offerings"]],
        }
        for name in DIALECTS
    ]
    plan["partitions"] = [
        {**partition, "name": name, "nodesets": [name], "default": name == DIALECTS[0]} for name in DIALECTS
    ]
    cluster = make_cluster(settings=plan)
    jobs = {
        name: Training(cluster, STEPS, 0.05, tmp_path / name, options=(f"--partition={name}",)).submit()
        for name in DIALECTS
    }
    for name, job in jobs.items():
        job.until_step(10)
        cluster.cloud(name).reclaim(job.node())
    for name, job in jobs.items():
        job.until_epoch(2)
        ended = [e.body for e in job.entries() if e.kind is Kind.INTERRUPTED]
        assert [(e["reason"], e["notice"]["provider"]) for e in ended] == [(f"{name} reclaim", name)]
        urgent = [e.body["notice"] for e in job.entries() if e.kind is Kind.COMMIT and e.body.get("notice")]
        assert urgent, "the last checkpoint before the end was asked for by the notice"
    reference = undisturbed(tmp_path / "undisturbed", STEPS)
    for name, job in jobs.items():
        job.until_finished()
        assert_same(tmp_path / name, reference)
        assert_no_commit_lost(job.entries())
        assert len(job.attempts()) == 2
