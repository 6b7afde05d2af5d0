"""Real Slurm clusters for tests: each its own munged, slurmctld, network and machines; taken down whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud.local.host import require
from slurm_plugin.cloud.local.state import locked
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.cluster import COMMANDS, LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.local_cluster.sweep import sweep
from tests.fixtures.tools import CACHE
from tests.fixtures.unmet import unmet

SWEEPING = CACHE / "sweep.lock"
"""Held by who sweeps, and by a test that leaves something to sweep itself."""
MakeCluster = Callable[..., LocalCluster]
PATIENT = "MessageTimeout=60"
"""Line of slurm.conf: a busy machine may not answer within Slurm's own 10 s."""


@pytest.fixture(scope="session")
def able() -> None:
    """Skip where no private cluster can run; take down what killed test runs have left."""
    try:
        require(COMMANDS)
    except LocalCloudError as error:
        unmet(str(error))
    with locked(SWEEPING):
        sweep()


def _maker(folder: Path, stack: ExitStack) -> MakeCluster:
    made = 0

    def make(
        nodes: int = 2,
        *,
        manager: bool = True,
        settings: dict[str, Any] | None = None,
        site: dict[str, Any] | None = None,
        slurm_root: Path | None = None,
        with_accounting: bool = False,
        **wanted: Any,
    ) -> LocalCluster:
        """``wanted`` as in ``default_settings``; ``settings`` replaces it all; ``site`` as in ``render.Site``; the others as ``LocalCluster`` has them."""
        nonlocal made
        made += 1
        plan = settings if settings is not None else default_settings(nodes, **wanted)
        lines = dict(site or {})
        lines["more"] = (PATIENT, *lines.get("more", ()))
        cluster = LocalCluster(
            folder / f"c{made}",
            plan,
            manager=manager,
            slurm_root=slurm_root,
            with_accounting=with_accounting,
            **lines,
        )
        return stack.enter_context(cluster)

    return make


@pytest.fixture
def make_cluster(able: None, tmp_path: Path) -> Iterator[MakeCluster]:
    """Makes clusters that end with the test."""
    with ExitStack() as stack:
        yield _maker(tmp_path, stack)


@pytest.fixture(scope="module")
def make_module_cluster(able: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """Makes clusters that end with the module."""
    with ExitStack() as stack:
        yield _maker(tmp_path_factory.mktemp("cluster"), stack)


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> LocalCluster:
    """Two spot nodes with one GPU each, and the manager."""
    return make_cluster(2)
