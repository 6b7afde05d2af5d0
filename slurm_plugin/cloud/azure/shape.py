"""Machines as they are asked for, and as Azure shows them, as values. Nothing is sent here.

Source: Azure REST API, Microsoft.Compute, "Virtual Machines - Create Or Update" and "- Get".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_plugin.cloud import tags
from slurm_plugin.cloud.azure.errors import NO_ANSWER, ApiError
from slurm_plugin.cloud.instants import unix_seconds
from slurm_plugin.cloud.provider import Instance, InstanceState, LaunchRequest, Market
from slurm_plugin.config import AzureProvider
from slurm_plugin.config_providers import ANY_ZONE

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
"""What a machine that is also a host may be called."""
NETWORK_API = "2022-11-01"


def body(config: AzureProvider, cluster: str, request: LaunchRequest, user_data: str) -> dict[str, Any]:
    """The machine that a request asks for."""
    offering = request.offering
    owner = tags.Ownership(cluster, request.node, request.nodeset, request.launch_id, offering.id)
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": offering.instance_type},
        "storageProfile": {"imageReference": _image(config.image), "osDisk": _disk(config)},
        "osProfile": {
            "computerName": request.node,
            "adminUsername": config.admin_user,
            "customData": base64.b64encode(user_data.encode()).decode(),
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {
                    "publicKeys": [
                        {"path": f"/home/{config.admin_user}/.ssh/authorized_keys", "keyData": config.ssh_public_key}
                    ]
                },
            },
        },
        "networkProfile": {"networkApiVersion": NETWORK_API, "networkInterfaceConfigurations": [_interface(config)]},
    }
    if offering.market is Market.SPOT:
        properties |= {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}
    if config.proximity_placement_group and request.gang is not None:
        properties["proximityPlacementGroup"] = {"id": config.proximity_placement_group}
    machine: dict[str, Any] = {
        "location": config.region,
        "tags": {**config.tags, **owner.tags()},
        "properties": properties,
    }
    if offering.zone not in ANY_ZONE:
        machine["zones"] = [offering.zone]
    if config.identity:
        machine["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {config.identity: {}}}
    return machine


def _image(text: str) -> dict[str, str]:
    if text.startswith("/"):
        return {"id": text}
    names = ("publisher", "offer", "sku", "version")
    return dict(zip(names, [*text.split(":"), "latest"][:4], strict=False))


def _disk(config: AzureProvider) -> dict[str, Any]:
    disk: dict[str, Any] = {
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "managedDisk": {"storageAccountType": config.disk_type},
    }
    if config.disk_gb is not None:
        disk["diskSizeGB"] = config.disk_gb
    return disk


def _interface(config: AzureProvider) -> dict[str, Any]:
    address = {"name": "main", "properties": {"subnet": {"id": config.subnet}, "primary": True}}
    return {
        "name": "main",
        "properties": {"primary": True, "deleteOption": "Delete", "ipConfigurations": [address]},
    }


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of this cluster."""

    owner: tags.Ownership
    name: str
    provisioning: str
    power: str
    """Last word of ``PowerState/…``; "" where it is not known."""
    failure: ApiError | None
    launched: float

    @property
    def instance_id(self) -> str:
        """Name and launch id: names serve again and again."""
        return instance_id(self.name, self.owner.launch_id)

    @property
    def state(self) -> InstanceState:
        """As far as scheduling cares. What is stopped or deallocated, or never came about, is lost, and still to be deleted."""
        if self.provisioning == "Deleting":
            return InstanceState.STOPPING
        if self.provisioning == "Failed" or self.power in ("stopped", "deallocated"):
            return InstanceState.GONE
        if self.power in ("stopping", "deallocating"):
            return InstanceState.STOPPING
        if self.provisioning == "Creating" or self.power == "starting":
            return InstanceState.PENDING
        return InstanceState.RUNNING

    def instance(self, state: InstanceState | None = None) -> Instance:
        """As the manager knows machines."""
        owner = self.owner
        return Instance(
            instance_id=self.instance_id,
            launch_id=owner.launch_id,
            node=owner.node,
            nodeset=owner.nodeset,
            state=state or self.state,
            launched=self.launched,
            offering_id=owner.offering_id,
        )


def instance_id(name: str, launch_id: str) -> str:
    """A machine's id."""
    return f"{name}/{launch_id}"


def read(shown: Mapping[str, Any], cluster: str) -> Machine | None:
    """The machine that an answer shows; None for one of another cluster. Raises ``ApiError`` where it can't be told: nothing is concluded then."""
    try:
        return _read(shown, cluster)
    except (AttributeError, TypeError, ValueError) as error:
        raise ApiError(NO_ANSWER, f"a machine is shown that can't be read: {str(shown)[:200]}") from error


def _read(shown: Mapping[str, Any], cluster: str) -> Machine | None:
    owner = tags.read({str(k): str(v) for k, v in (shown.get("tags") or {}).items()}, cluster)
    if owner is None:
        return None
    properties = shown.get("properties") or {}
    statuses = (properties.get("instanceView") or {}).get("statuses") or []
    power, failure = "", None
    for status in statuses:
        kind, _, word = str(status.get("code")).partition("/")
        if kind == "PowerState":
            power = word
        elif kind == "ProvisioningState" and word.startswith("failed"):
            code = word.partition("/")[2] or "ProvisioningFailed"
            failure = ApiError(code, str(status.get("message") or status.get("displayStatus") or "provisioning failed"))
    return Machine(
        owner=owner,
        name=str(shown.get("name")),
        provisioning=str(properties.get("provisioningState") or ""),
        power=power,
        failure=failure,
        launched=unix_seconds(str(properties.get("timeCreated"))) or 0.0,
    )
