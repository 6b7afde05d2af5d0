"""What slurmctld has saved of its state."""

from __future__ import annotations

from slurm_plugin.local_cluster.cluster import LocalCluster

STATE = ("job_state", "node_state")
"""Files of StateSaveLocation, written some seconds after a change."""


def saved(cluster: LocalCluster) -> dict[str, bytes]:
    """``STATE`` by name. Empty while one is not there: slurmctld puts a new file in the old one's place in two steps."""
    try:
        return {name: (cluster.root / "slurmctld" / name).read_bytes() for name in STATE}
    except FileNotFoundError:
        return {}
