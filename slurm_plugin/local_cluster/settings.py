"""burst.yaml of a private cluster, as plain values: a start that a test or a person changes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

GPU_FILE = "/run/spotburst/gpu{}"
"""Files that each machine of the embedded cloud has in its own /run; Slurm needs one a GPU."""


def default_settings(
    nodes: int = 2,
    *,
    ondemand: int = 0,
    cpus: int = 1,
    memory_mb: int = 500,
    gpus: int = 1,
    grace_time: float = 0,
    speaks: str = "aws",
    boot_time: float = 0,
    notice: float = 120,
    suspend_time: float = 300,
    suspend_timeout: float = 5,
    resume_timeout: float = 60,
    cluster: str = "local",
    zones: tuple[str, ...] = ("zone-a",),
) -> dict[str, Any]:
    """A spot nodeset ``spot-[1-N]`` and, if asked for, ``ondemand-[1-M]``; partitions ``spot`` (default) and ``urgent`` over both.

    ``urgent`` takes nodes from ``spot`` with ``grace_time`` seconds of warning. Times in seconds. Each zone is one more offering.
    """

    def nodeset(name: str, count: int, market: str) -> dict[str, Any]:
        shape: dict[str, Any] = {
            "name": name,
            "nodes": f"{name}-[1-{count}]" if count > 1 else f"{name}-1",
            "cpus": cpus,
            "memory_mb": memory_mb,
            "offerings": [
                {"provider": "local", "instance_type": f"small-{gpus}g", "zone": zone, "market": market}
                for zone in zones
            ],
        }
        if gpus:
            shape["gpus"] = {"type": "tiny", "count": gpus, "files": [GPU_FILE.format(i) for i in range(gpus)]}
        return shape

    nodesets = [nodeset("spot", nodes, "spot")] if nodes else []
    if ondemand:
        nodesets.append(nodeset("ondemand", ondemand, "on-demand"))
    names = [n["name"] for n in nodesets]
    partitions: list[dict[str, Any]] = [
        {"name": name, "nodesets": [name], "default": name == names[0], "grace_time": grace_time} for name in names
    ]
    partitions.append(
        {"name": "urgent", "nodesets": names, "priority_tier": 10, "preempt_mode": "off", "grace_time": grace_time}
    )
    return {
        "cluster": cluster,
        "providers": {"local": {"type": "local", "speaks": speaks, "boot_time": boot_time, "notice": notice}},
        "power": {
            "suspend_time": suspend_time,
            "suspend_timeout": suspend_timeout,
            "resume_timeout": resume_timeout,
        },
        "nodesets": nodesets,
        "partitions": partitions,
    }


def place(
    settings: Mapping[str, Any], root: Path, bridge: str, subnet: IPv4Network, slurm_bin: Path | None
) -> dict[str, Any]:
    """Fill in what only the running cluster knows: state folder, slurm.conf, bridge, subnet; and a checkpoint URI if there is none."""
    placed = deepcopy(dict(settings))
    placed["state_dir"] = str(root / "state")
    placed["slurm"] = {**(placed.get("slurm") or {}), "conf": str(root / "etc" / "slurm.conf")}
    if slurm_bin is not None:
        placed["slurm"]["bin_dir"] = str(slurm_bin)
    checkpoints = dict(placed.get("checkpoints") or {})
    checkpoints.setdefault("uri", f"file://{root / 'checkpoints'}")
    placed["checkpoints"] = checkpoints
    for provider in placed.get("providers", {}).values():
        if isinstance(provider, dict) and provider.get("type") == "local":
            provider["bridge"] = bridge
            provider["subnet"] = str(subnet)
    return placed
