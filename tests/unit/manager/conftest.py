"""A manager over a simulated Slurm and cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.manager.checks import NAMES, Make
from tests.unit.manager.harness import Manager, policy
from tests.unit.manager.world import World


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Manager] = []

    def build(names: tuple[str, ...] = NAMES, seed: int = 0, idle_on_suspend: bool = True, **rules: object) -> Manager:
        folder = tmp_path / f"m{len(made)}"
        world = World(names, folder, seed, idle_on_suspend)
        made.append(Manager(world, policy(names, **rules), folder / "ledger.db"))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for manager in made:
        manager.close()
