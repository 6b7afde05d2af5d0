"""Google Compute Engine's metadata server, with the hanging GET.

Source: Compute Engine documentation, "View and query VM metadata" and "Spot VMs". Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from slurm_plugin.cloud.local.http_types import Reply, Request

_ROOT = "/computeMetadata/v1"


def answer(request: Request, machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> Reply:
    """One request. Without ``Metadata-Flavor: Google`` 403."""
    headers = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "Content-Type": "application/text"}
    if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
        return Reply(403, "Missing Metadata-Flavor:Google header.", headers)
    if request.method not in ("GET", "HEAD"):
        return Reply(405, "", headers)
    value = _values(machine, control, now).get(request.path.rstrip("/"))
    if value is None:
        return Reply(404, "", headers)
    etag = hashlib.sha256(value.encode()).hexdigest()[:16]
    return Reply(200, value, {**headers, "ETag": etag}, can_wait=True)


def _values(machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> dict[str, str]:
    spot = machine["market"] == "spot"
    reclaim = control.get("reclaim")
    preempted = reclaim is not None and float(reclaim["noticed"]) <= now
    zone = f"projects/1/zones/{machine['zone']}"
    at = f"{_ROOT}/instance"
    values = {
        f"{at}/preempted": "TRUE" if preempted else "FALSE",
        f"{at}/maintenance-event": control.get("maintenance_event", "NONE"),
        f"{at}/id": str(int(machine["instance_id"].removeprefix("i-"), 16)),
        f"{at}/name": machine["node"],
        f"{at}/hostname": machine["node"],
        f"{at}/zone": zone,
        f"{at}/machine-type": f"projects/1/machineTypes/{machine['instance_type']}",
        f"{at}/scheduling/preemptible": "TRUE" if spot else "FALSE",
        f"{at}/scheduling/provisioning-model": "SPOT" if spot else "STANDARD",
        f"{at}/network-interfaces/0/ip": machine["address"],
        f"{_ROOT}/project/project-id": "local",
    }
    values |= {f"{at}/attributes/{key}": value for key, value in machine["tags"].items()}
    return values
