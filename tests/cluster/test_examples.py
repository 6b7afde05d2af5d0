"""The job templates of ``examples/`` on a real Slurm, side by side, and other tools' jobs among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from tests.cluster import scenes_examples
from tests.cluster.counting import Stage
from tests.cluster.playing import played, scenes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

NODES = 14
SCENES = scenes(scenes_examples)
ELSEWHERE = {"train.sbatch": "training.py", "train_fsdp.sbatch": "test_gangs.py"}
"""Templates that other tests of this folder run, and where."""


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, make_module_cluster: Callable[..., LocalCluster]
) -> Iterator[dict[str, Future[None]]]:
    plan = default_settings(NODES)
    plan["checkpoints"] = {"interval": "2s"}
    stage = Stage(make_module_cluster(settings=plan), "22.05")
    stage.boot([f"spot-{n}" for n in range(1, NODES + 1)])
    with played(request, stage, SCENES) as futures:
        yield futures


@pytest.mark.parametrize("name", SCENES)
def test_scene(outcome: dict[str, Future[None]], name: str) -> None:
    outcome[name].result()


def test_each_template_is_run() -> None:
    folder = scenes_examples.EXAMPLES
    here = (folder.parent / "tests/cluster/scenes_examples.py").read_text()
    for template in [*folder.glob("*.sbatch"), folder / "session.sh"]:
        other = ELSEWHERE.get(template.name)
        text = here if other is None else (folder.parent / "tests/cluster" / other).read_text()
        assert template.name in text, template.name
