"""DescribeInstances' records as the manager's machines. Nothing is sent here.

Source: EC2 User Guide, "Instance lifecycle" and "Spot Instance interruptions": a spot instance that is stopped or hibernated has been
taken back, and waits to be deleted. DescribeSpotInstanceRequests tells of a reclaim up to two minutes ahead: ``marked-for-…``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slurm_plugin.cloud import tags
from slurm_plugin.cloud.aws import names
from slurm_plugin.cloud.provider import Instance, InstanceState

NOTICE = 120.0
"""Seconds between the mark and the end."""
MARKED = "marked-for-*"
_STATES = {
    "pending": (InstanceState.PENDING, True),
    "running": (InstanceState.RUNNING, True),
    "shutting-down": (InstanceState.STOPPING, True),
    "stopping": (InstanceState.STOPPING, True),
    "stopped": (InstanceState.GONE, True),
    "terminated": (InstanceState.GONE, False),
}
"""State, and whether it is still to be deleted. One that this version does not know counts as running: nothing is concluded from it."""


@dataclass(frozen=True, slots=True)
class Found:
    """One instance. ``named`` is False where its tags do not tell its node; ``machine`` then bears its instance id."""

    machine: Instance
    named: bool
    batch: str
    fleet: str
    spot: bool


def read(record: Mapping[str, Any]) -> Found:
    """One record of DescribeInstances."""
    instance_id = str(record["InstanceId"])
    told = {str(t["Key"]): str(t.get("Value", "")) for t in record.get("Tags") or ()}
    name = names.read(told)
    launch_id, node = name or (instance_id, instance_id)
    state, billed = _STATES.get(str(record.get("State", {}).get("Name")), (InstanceState.RUNNING, True))
    launched = record.get("LaunchTime")
    machine = Instance(
        instance_id=instance_id,
        launch_id=launch_id,
        node=node,
        nodeset=told.get(tags.NODESET, ""),
        state=state,
        launched=launched.timestamp() if launched is not None else 0.0,
        offering_id=told.get(tags.OFFERING, ""),
        address=str(record.get("PrivateIpAddress") or ""),
        billed=billed,
        zone=str((record.get("Placement") or {}).get("AvailabilityZone") or ""),
    )
    spot = record.get("InstanceLifecycle") == "spot"
    return Found(machine, name is not None, told.get(names.BATCH, ""), told.get(names.FLEET, ""), spot)


def marks(requests: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Instance id to when it was marked for its reclaim, Unix seconds, of DescribeSpotInstanceRequests' records."""
    found = {}
    for request in requests:
        status = request.get("Status") or {}
        if request.get("InstanceId") and str(status.get("Code", "")).startswith(MARKED.rstrip("*")):
            when = status.get("UpdateTime")
            found[str(request["InstanceId"])] = when.timestamp() if when is not None else 0.0
    return found


def reclaimed(machine: Instance, marked: float) -> Instance:
    """The machine as one that is being taken back."""
    if machine.state not in (InstanceState.PENDING, InstanceState.RUNNING):
        return machine
    return replace(
        machine,
        state=InstanceState.RECLAIMING,
        deadline=marked + NOTICE,
        notice_id=f"{machine.instance_id}-{int(marked)}",
    )
