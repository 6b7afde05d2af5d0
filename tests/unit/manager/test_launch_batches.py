"""What is asked for together: gangs share a batch and none is cut, so that a cloud can make them in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_plugin.actions import Launch
from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.provider import Launched, LaunchRequest
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.launch import Launcher
from slurm_plugin.manager.say import Once
from tests.unit.manager.harness import policy
from tests.unit.reconcile.views import A


class Cloud:
    """Makes all, and remembers what was asked."""

    name = "sim"

    def __init__(self) -> None:
        self.asked: list[list[LaunchRequest]] = []

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched]:
        self.asked.append(list(requests))
        return [Launched(r.launch_id, f"i-{r.launch_id}") for r in requests]


@pytest.mark.parametrize(
    ("gangs", "alone", "batches_of_gangs"), [([], 501, 0), ([300, 250, 4, 4], 0, 2), ([2, 498, 3, 501], 5, 3)]
)
def test_batches(tmp_path: Path, gangs: list[int], alone: int, batches_of_gangs: int) -> None:
    """All are asked for once, in one call of the provider; with the name of each node and no other's in its settings."""
    wanted = [(f"g{gang}-{n}", f"job-{gang}") for gang, size in enumerate(gangs) for n in range(size)]
    wanted += [(f"a-{n}", "") for n in range(alone)]
    names = [name for name, _ in wanted]
    cloud = Cloud()
    ledger = Ledger.open(tmp_path / "ledger.db")
    made: list[str] = []

    def config(nodeset: str, node: str, offering_id: str) -> dict[str, str]:
        made.append(node)
        return {"nodeset": nodeset, "node": node}

    launcher = Launcher(policy(tuple(names)), {"sim": Lane(cloud)}, ledger, config, Once())  # type: ignore[arg-type]
    actions = [Launch(name, "spot", (A.id,), None, gang or None) for name, gang in wanted]
    assert launcher.launch(actions, lambda: 1000.0) == []
    ledger.close()
    asked = [request for call in cloud.asked for request in call]
    assert sorted(r.node for r in asked) == sorted(names)
    assert all(r.node_config["node"] == r.node for r in asked)
    assert len(cloud.asked) == bool(names)
    assert len(made) <= 1, "the settings of a nodeset are made once"
    batches: dict[str, list[LaunchRequest]] = defaultdict(list)
    for request in asked:
        batches[launch_ids.base_of(request.launch_id)].append(request)
    homes = {r.gang: base for base, batch in batches.items() for r in batch if r.gang}
    for base, batch in batches.items():
        assert len(batch) <= launch_ids.LARGEST_BATCH or len({r.gang for r in batch}) == 1
        assert all(homes[r.gang] == base for r in batch if r.gang)
        assert len({bool(r.gang) for r in batch}) == 1
    assert len(set(homes.values())) == batches_of_gangs
