"""Bulk-insert requests, and machines as Compute Engine shows them, as values. Nothing is sent here.

Source: Compute Engine API v1, ``instances.bulkInsert`` and ``Instance``. All machines of one call have the same labels and metadata; only
their names differ. So the metadata lists which node is which launch of the batch, and a machine's own launch id follows from its name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.cloud import compute_v1

from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.gcp.journal import Call
from slurm_plugin.cloud.instants import unix_seconds
from slurm_plugin.cloud.provider import Instance, InstanceState, Market
from slurm_plugin.config import GcpProvider

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""What a machine, and so a node, may be called."""
NOTICE = 120
"""Seconds of preemption notice asked for where the API has it; Compute Engine takes 0 or 120."""
BASE = tags.PREFIX + "batch"
MEMBERS = tags.PREFIX + "members"
_STATES = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.RUNNING,
    "PENDING_STOP": InstanceState.RECLAIMING,
    "STOPPING": InstanceState.STOPPING,
    "SUSPENDING": InstanceState.STOPPING,
    "DEPROVISIONING": InstanceState.STOPPING,
}
"""The rest (STOPPED, SUSPENDED, TERMINATED, and what may come) is lost to Slurm, and still to be deleted."""


def label(text: str) -> str:
    """As a label's value: lower case, digits, ``-`` and ``_``, at most 63. Names that would fall together are told apart by a hash."""
    if re.fullmatch(r"[a-z0-9_-]{1,63}", text):
        return text
    plain = re.sub(r"[^a-z0-9_-]", "-", text.lower())[:50]
    return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def resource(
    config: GcpProvider, cluster: str, call: Call, startup_script: str
) -> compute_v1.BulkInsertInstanceResource:
    """What the call asks for. The same call gives the same request."""
    properties: dict[str, Any] = {
        "machine_type": call.instance_type,
        "labels": {**config.labels, tags.CLUSTER: label(cluster)},
        "metadata": {"items": [{"key": k, "value": v} for k, v in _metadata(cluster, call, startup_script).items()]},
        "disks": [_disk(config)],
        "network_interfaces": [{"subnetwork": _in_region(config, "subnetworks", config.subnetwork)}],
        "scheduling": _scheduling(call),
    }
    if config.service_account:
        scope = "https://www.googleapis.com/auth/cloud-platform"
        properties["service_accounts"] = [{"email": config.service_account, "scopes": [scope]}]
    if config.network_tags:
        properties["tags"] = {"items": list(config.network_tags)}
    if config.placement_policy and call.whole and len(call.members) > 1:
        properties["resource_policies"] = [_in_region(config, "resourcePolicies", config.placement_policy)]
    if call.market == Market.RESERVATION.value:
        reservation = config.reservation(call.instance_type, call.zone)
        properties["reservation_affinity"] = {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [reservation.name if reservation else ""],
        }
    members: dict[str, Any] = {
        "count": len(call.members),
        "min_count": len(call.members) if call.whole else 1,
        "per_instance_properties": {node: {"name": node} for node in call.members.values()},
        "instance_properties": properties,
    }
    if not call.zone:
        policy: dict[str, Any] = {"target_shape": "ANY_SINGLE_ZONE" if call.whole else "ANY"}
        if config.zones:
            policy["zones"] = [{"zone": f"zones/{zone}"} for zone in config.zones]
            policy["locations"] = {f"zones/{zone}": {"preference": "ALLOW"} for zone in config.zones}
        members["location_policy"] = policy
    return compute_v1.BulkInsertInstanceResource(members)


def _metadata(cluster: str, call: Call, startup_script: str) -> dict[str, str]:
    numbers = sorted((launch_ids.index_of(launch_id), node) for launch_id, node in call.members.items())
    return {
        tags.CLUSTER: cluster,
        tags.NODESET: call.nodeset,
        tags.OFFERING: call.offering_id,
        BASE: launch_ids.base_of(next(iter(call.members))),
        MEMBERS: ",".join(f"{number:x}:{node}" for number, node in numbers),
        "startup-script": startup_script,
    }


def _scheduling(call: Call) -> dict[str, Any]:
    # GPU machines can't be migrated; and one that was restarted behind Slurm's back would be taken for one that was never away.
    scheduling: dict[str, Any] = {"on_host_maintenance": "TERMINATE", "automatic_restart": False}
    if call.market == Market.SPOT.value:
        scheduling |= {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
        if call.notice:
            scheduling["preemption_notice_duration"] = {"seconds": NOTICE}
    return scheduling


def _disk(config: GcpProvider) -> dict[str, Any]:
    initial: dict[str, Any] = {"source_image": config.image, "disk_type": config.disk_type}
    if config.disk_gb is not None:
        initial["disk_size_gb"] = config.disk_gb
    return {"boot": True, "auto_delete": True, "initialize_params": initial}


def _in_region(config: GcpProvider, kind: str, name: str) -> str:
    return name if "/" in name else f"projects/{config.project}/regions/{config.region}/{kind}/{name}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of this cluster. ``number`` is Compute Engine's own; names serve again and again."""

    owner: tags.Ownership
    name: str
    zone: str
    number: int
    status: str
    spot: bool
    launched: float
    address: str
    deadline: float | None

    @property
    def instance_id(self) -> str:
        """Node and launch id: known before the machine is made. A machine of which nobody knows the launch goes by its number."""
        return instance_id(self.name, self.owner.launch_id or str(self.number))

    @property
    def state(self) -> InstanceState:
        """As far as scheduling cares."""
        return _STATES.get(self.status, InstanceState.GONE)

    def instance(self, state: InstanceState | None = None) -> Instance:
        """As the manager knows machines."""
        owner = self.owner
        reclaiming = (state or self.state) is InstanceState.RECLAIMING
        return Instance(
            instance_id=self.instance_id,
            launch_id=owner.launch_id,
            node=owner.node,
            nodeset=owner.nodeset,
            state=state or self.state,
            launched=self.launched,
            offering_id=owner.offering_id,
            address=self.address,
            deadline=self.deadline if reclaiming else None,
            notice_id=f"{self.number}-stop" if reclaiming else None,
            zone=self.zone,
        )


def instance_id(name: str, launch_id: str) -> str:
    """A machine's id."""
    return f"{name}/{launch_id}"


@lru_cache(maxsize=256)
def _numbers(members: str) -> Mapping[str, str]:
    """Node to its number in the batch, from the metadata; all machines of a call have the same."""
    return {node: number for number, _, node in (m.partition(":") for m in members.split(","))}


def read(instance: Any, cluster: str) -> Machine | None:
    """The machine that an answer (a plain protobuf message) shows; None for one of another cluster."""
    items: Mapping[str, str] = {item.key: item.value for item in instance.metadata.items}
    launches = _numbers(items.get(MEMBERS, ""))
    try:
        launch_id = launch_ids.of(items[BASE], int(launches[instance.name], 16))
    except (KeyError, ValueError):
        launch_id = ""
    owner = tags.read({**items, tags.NODE: instance.name, tags.LAUNCH: launch_id}, cluster)
    if owner is None:
        return None
    stop = instance.resource_status.shutdown_details
    asked = unix_seconds(stop.request_timestamp)
    return Machine(
        owner=owner,
        name=instance.name,
        zone=instance.zone.rsplit("/", 1)[-1],
        number=instance.id,
        status=instance.status,
        spot=instance.scheduling.provisioning_model == "SPOT",
        launched=unix_seconds(instance.creation_timestamp) or 0.0,
        address=next((i.network_i_p for i in instance.network_interfaces if i.network_i_p), ""),
        deadline=asked + stop.max_duration.seconds if asked is not None else None,
    )
