"""Clusters whose owner was killed before it could take them down."""

from __future__ import annotations

from pathlib import Path

from slurm_plugin.cloud.local import network
from slurm_plugin.cloud.local.state import Process, locked, read_json
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.folder import require_own


def clusters() -> list[LocalCluster]:
    """All private clusters on this host of which something is left, found by their bridges."""
    return [LocalCluster(Path(state_dir).parent) for _, state_dir in network.owned_bridges()]


def sweep() -> list[Path]:
    """Take down clusters whose owner was killed before it could; their folders."""
    swept = []
    for cluster in clusters():
        if not _left(cluster):
            continue
        require_own(cluster.root)  # before a file is made there
        # Another process may sweep, too: only one of them takes it down.
        with locked(cluster.daemons.notes / "sweep.lock"):
            if _left(cluster):
                cluster.stop()
                swept.append(cluster.root)
    return swept


def _left(cluster: LocalCluster) -> bool:
    """Whether it has an owner, who is dead."""
    owner = Process.from_dict(read_json(cluster.daemons.notes / "owner.json"))
    return owner is not None and not owner.alive()
