"""The main job, preemption by QOS, and what Slurm's accounting keeps of each attempt, on real Slurm 22.05 and 24.11 with slurmdbd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster import scenes_accounted
from tests.cluster.counting import Stage
from tests.cluster.playing import KILL_WAIT, played, scenes, slurm_root
from tests.fixtures.private_slurm import VERSIONS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NODES = 8
SCENES = scenes(scenes_accounted)


@pytest.fixture(scope="module", params=VERSIONS)
def outcome(
    request: pytest.FixtureRequest, make_module_cluster: Callable[..., LocalCluster]
) -> Iterator[dict[str, Future[None]]]:
    version = request.param
    plan = default_settings(NODES, gpus=0)
    plan["checkpoints"] = {"interval": "2s"}
    cluster = make_module_cluster(
        settings=plan,
        slurm_root=slurm_root(version),
        with_accounting=True,
        site={"kill_wait": KILL_WAIT, "more": ("PreemptType=preempt/qos",)},
    )
    stage = Stage(cluster, version)
    scenes_accounted.prepare(stage)
    stage.boot([f"spot-{n}" for n in range(1, NODES + 1)])
    with played(request, stage, SCENES) as futures:
        yield futures
    cluster.stop()


@pytest.mark.parametrize("name", SCENES)
def test_scene(outcome: dict[str, Future[None]], name: str) -> None:
    outcome[name].result()
