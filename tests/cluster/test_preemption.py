"""What becomes of jobs that are preempted, requeued, ended or lose their node, on real Slurm 22.05 and 24.11, without accounting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster import scenes_ordered, scenes_preempted
from tests.cluster.counting import Stage
from tests.cluster.playing import KILL_WAIT, played, scenes, slurm_root
from tests.fixtures.private_slurm import VERSIONS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

NODES = 26
SCENES = scenes(scenes_preempted, scenes_ordered)


def settings() -> dict[str, object]:
    """Partitions that differ by their grace, and nodes ``slow-[1-6]`` that take a while to boot; ``rare-1`` is one scene's own."""
    plan = default_settings(NODES, gpus=0)
    (spot,), (first, urgent) = plan["nodesets"], plan["partitions"]
    plan["checkpoints"] = {"interval": "2s"}
    plan["providers"]["slow"] = {**plan["providers"]["local"], "boot_time": 20}
    offerings = [{**o, "provider": "slow"} for o in spot["offerings"]]
    plan["nodesets"] = [
        spot,
        {**spot, "name": "slow", "nodes": "slow-[1-6]", "offerings": offerings},
        {**spot, "name": "rare", "nodes": "rare-1"},
    ]
    plan["partitions"] = [
        first,
        *({"name": f"grace{t}", "nodesets": ["spot"], "grace_time": t} for t in (0, 10, 60, 300)),
        {"name": "slow", "nodesets": ["slow"], "grace_time": 10},
        {"name": "rare", "nodesets": ["rare"], "grace_time": 10},
        {**urgent, "nodesets": ["spot", "slow"]},
    ]
    return plan


@pytest.fixture(scope="module", params=VERSIONS)
def outcome(
    request: pytest.FixtureRequest, make_module_cluster: Callable[..., LocalCluster]
) -> Iterator[dict[str, Future[None]]]:
    version = request.param
    cluster = make_module_cluster(settings=settings(), slurm_root=slurm_root(version), site={"kill_wait": KILL_WAIT})
    stage = Stage(cluster, version)
    stage.boot(["rare-1", *(f"spot-{n}" for n in range(1, NODES + 1))])
    with played(request, stage, SCENES) as futures:
        yield futures
    cluster.stop()


@pytest.mark.parametrize("name", SCENES)
def test_scene(outcome: dict[str, Future[None]], name: str) -> None:
    outcome[name].result()
