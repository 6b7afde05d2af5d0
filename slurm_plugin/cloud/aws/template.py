"""Launch templates: what all machines of a nodeset have in common. Made here, and a new version whenever what is in them changes."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from slurm_plugin import render
from slurm_plugin.cloud import tags
from slurm_plugin.cloud.aws.client import Ec2
from slurm_plugin.cloud.aws.errors import NO_TEMPLATE, ApiError
from slurm_plugin.config import AwsProvider
from slurm_plugin.config_providers import AwsReservation

EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"
LARGEST_USER_DATA = 16384
_OF_ONE_NODE = ("node", "offering")
"""What the node fills in from its own tags."""


def shared_user_data(node_config: Mapping[str, Any], agent_unit: str) -> str:
    """What all machines of a nodeset are started with: node.json without what belongs to one node."""
    shared = {k: v for k, v in node_config.items() if k not in _OF_ONE_NODE}
    return render.shared_cloud_init(json.dumps(shared, indent=1, sort_keys=True) + "\n", agent_unit)


def contents(
    config: AwsProvider, node_config: Mapping[str, Any], agent_unit: str, reservation: AwsReservation | None
) -> dict[str, Any]:
    """LaunchTemplateData. Raises ``ApiError`` where the user data is larger than EC2 takes."""
    user_data = shared_user_data(node_config, agent_unit)
    if len(user_data.encode()) > LARGEST_USER_DATA:
        raise ApiError("InvalidUserData.Malformed", f"user data is {len(user_data.encode())} bytes; EC2 takes 16384")
    data: dict[str, Any] = {
        "ImageId": config.image,
        "UserData": base64.b64encode(user_data.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            # Containers on the node are one hop further.
            "HttpPutResponseHopLimit": 2,
            "InstanceMetadataTags": "enabled",
        },
    }
    if config.security_groups:
        data["SecurityGroupIds"] = list(config.security_groups)
    if config.instance_profile:
        data["IamInstanceProfile"] = {"Name": config.instance_profile}
    if config.tags:
        own = [{"Key": k, "Value": v} for k, v in sorted(config.tags.items())]
        data["TagSpecifications"] = [{"ResourceType": kind, "Tags": own} for kind in ("instance", "volume")]
    if reservation is not None:
        data["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": reservation.id}
        }
        if reservation.kind == "capacity-block":
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return data


class Templates:
    """Finds or makes the version that holds given contents. Safe in several threads and for several managers."""

    def __init__(self, ec2: Ec2, cluster: str, provider: str) -> None:
        self.ec2, self.cluster, self.provider = ec2, cluster, provider
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], str] = {}

    def name(self, nodeset: str, reservation: AwsReservation | None) -> str:
        """One template a nodeset, and a reservation."""
        words = ["spotburst", self.cluster, self.provider, nodeset, *([reservation.id] if reservation else [])]
        name = "-".join(words)
        # EC2 takes 128 characters.
        return name if len(name) <= 128 else f"{name[:95]}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def ensure(self, nodeset: str, reservation: AwsReservation | None, data: dict[str, Any]) -> tuple[str, str]:
        """Name and version. The contents' checksum is the version's description, by which it is found again. Raises ``ApiError``."""
        name = self.name(nodeset, reservation)
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:40]
        with self._lock:
            if (name, digest) not in self._known:
                self._known[name, digest] = self._find(name, digest) or self._make(name, digest, data)
            return name, self._known[name, digest]

    def forget(self) -> None:
        """Look again: one of them is not there any more."""
        with self._lock:
            self._known.clear()

    def _find(self, name: str, digest: str) -> str | None:
        """The version; None where it, or the template, is not there."""
        try:
            for version in self.ec2.pages(
                "describe_launch_template_versions", "LaunchTemplateVersions", LaunchTemplateName=name
            ):
                if version.get("VersionDescription") == digest:
                    return str(version["VersionNumber"])
        except ApiError as error:
            if error.code not in NO_TEMPLATE:
                raise
        return None

    def _make(self, name: str, digest: str, data: dict[str, Any]) -> str:
        own = [{"Key": tags.CLUSTER, "Value": self.cluster}]
        # For this one call and its repetitions: under one that were always the same, EC2 would answer with a template that was deleted
        # meanwhile. A version that is made twice harms nothing.
        token = str(uuid.uuid4())
        try:
            self.ec2.write(
                "create_launch_template",
                LaunchTemplateName=name,
                VersionDescription=digest,
                LaunchTemplateData=data,
                ClientToken=token,
                TagSpecifications=[{"ResourceType": "launch-template", "Tags": own}],
            )
            return "1"
        except ApiError as error:
            if error.code != EXISTS:
                raise
        made = self.ec2.write(
            "create_launch_template_version",
            LaunchTemplateName=name,
            VersionDescription=digest,
            LaunchTemplateData=data,
            ClientToken=token,
        )
        return str(made["LaunchTemplateVersion"]["VersionNumber"])
