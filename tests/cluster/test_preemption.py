"""What becomes of jobs that are preempted, requeued, ended or lose their node, on real Slurm 22.05 and 24.11.

One cluster a version, and all scenes on it at the same time, since they mostly wait.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType

import pytest

from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster import scenes_ordered, scenes_preempted
from tests.cluster.counting import Stage
from tests.fixtures import debian13
from tests.fixtures.private_slurm import VERSIONS
from tests.fixtures.unmet import unmet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NODES = 20


def scenes(module: ModuleType) -> dict[str, Callable[[Stage], None]]:
    return {n: f for n, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__}


SCENES = {**scenes(scenes_preempted), **scenes(scenes_ordered)}


def settings() -> dict[str, object]:
    plan = default_settings(NODES, gpus=0)
    first, urgent = plan["partitions"]
    plan["checkpoints"] = {"interval": "2s"}
    plan["partitions"] = [
        first,
        *({"name": f"grace{t}", "nodesets": ["spot"], "grace_time": t} for t in (0, 10, 300)),
        urgent,
    ]
    return plan


@pytest.fixture(scope="module", params=VERSIONS)
def played(
    request: pytest.FixtureRequest, make_module_cluster: Callable[..., LocalCluster]
) -> Iterator[dict[str, Future[None]]]:
    """All chosen scenes, begun."""
    prefix = None
    if request.param != "22.05":
        if why := debian13.missing():
            unmet(why)
        prefix = debian13.slurm_prefix()
    cluster = make_module_cluster(settings=settings(), slurm_root=prefix)
    stage = Stage(cluster, request.param)
    stage.boot([f"spot-{n}" for n in range(1, NODES + 1)])
    chosen = {
        i.callspec.params["name"]
        for i in request.session.items
        if i.path == request.path and "name" in i.callspec.params
    }  # type: ignore[attr-defined]
    with ThreadPoolExecutor(len(chosen)) as pool:
        yield {name: pool.submit(SCENES[name], stage) for name in chosen}


@pytest.mark.parametrize("name", SCENES)
def test_scene(played: dict[str, Future[None]], name: str) -> None:
    played[name].result()
