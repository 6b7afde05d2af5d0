"""The providers of burst.yaml, and the offerings that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from slurm_plugin.cloud.provider import Market
from slurm_plugin.config_types import Duration, Model, Name

ANY_ZONE = ("any", "default")
"""Zones that leave the choice to the cloud."""


class OfferingConfig(Model):
    """One thing that can fill a nodeset, in order of preference."""

    provider: Name
    instance_type: str
    zone: str = "default"
    market: Market = Market.SPOT
    gpu: Name | None = None
    """GPU type, where it is not the nodeset's ``gpus.type``: what ``placement.gpu_types`` looks at."""


class LocalProvider(Model):
    """The embedded cloud: machines are process trees in namespaces of their own on this host."""

    type: Literal["local"]
    subnet: str = "10.77.0.0/24"
    bridge: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,14}$")] = "sb-br0"
    speaks: Literal["aws", "gcp", "azure"] = "aws"
    """Whose metadata service answers at 169.254.169.254 inside a machine."""
    boot_time: Duration = 0.0
    """Seconds that a machine takes before it starts slurmd."""
    notice: Duration = 120.0
    """Warning before a reclaim (AWS: 120 s, elsewhere 30 s)."""


class CloudProvider(Model):
    """What all clouds' settings have."""

    def unfit(self, offering: OfferingConfig) -> str:
        """Why the offering can't be bought here, in words that go after its place in burst.yaml; "" if it can."""
        return ""

    def scatters(self, offering: OfferingConfig) -> bool:
        """Whether the machines of one call may lie in several zones, though they are to come together."""
        return False


class AwsReservation(Model):
    """A capacity reservation, or a capacity block, that offerings of market ``reservation`` are taken from."""

    id: Annotated[str, Field(pattern=r"^cr-")]
    instance_type: str
    zone: str
    kind: Literal["on-demand", "capacity-block"] = "on-demand"


class AwsProvider(CloudProvider):
    """Amazon EC2."""

    type: Literal["aws"]
    region: str
    endpoint_url: str | None = None
    profile: str | None = None
    image: Annotated[str, Field(pattern=r"^(ami-|resolve:ssm:)")]
    """``ami-…``, or ``resolve:ssm:/path/of/a/parameter`` that holds one."""
    subnets: Annotated[Mapping[str, Annotated[str, Field(pattern=r"^subnet-")]], Field(min_length=1)]
    """Zone to subnet id. An offering's zone is one of these, or ``any``: EC2 then chooses by price and capacity."""
    security_groups: tuple[Annotated[str, Field(pattern=r"^sg-")], ...] = ()
    instance_profile: str | None = None
    """Name of the IAM instance profile that nodes have: it lets them reach the checkpoints."""
    events_queue: Annotated[str, Field(pattern=r"^https?://[^/]+/.+")] | None = None
    """URL of the SQS queue that EventBridge puts events about instances into; one of this cluster's and provider's own."""
    reservations: tuple[AwsReservation, ...] = ()
    tags: Mapping[str, str] = {}
    """Tags of the site's own, on every instance and its volumes."""
    node_program: Path = Path("/opt/spotburst/bin/spotburst")
    """Where the image has spotburst."""

    @field_validator("tags")
    @classmethod
    def _own_tags(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for key in value:
            if key.lower().startswith(("aws:", "spotburst-")):
                raise ValueError(f"{key!r}: keys that begin with aws: or spotburst- are taken; choose another")
        if len(value) > 30:
            raise ValueError(f"{len(value)} tags: at most 30 (EC2 takes 50, spotburst needs some itself)")
        return value

    def unfit(self, offering: OfferingConfig) -> str:
        """See ``CloudProvider``."""
        if offering.zone not in (*self.subnets, *ANY_ZONE):
            return f"zone {offering.zone!r} has no subnet under subnets; there are: {', '.join(self.subnets)}; or write any"
        if offering.market is Market.RESERVATION and self.reservation(offering.instance_type, offering.zone) is None:
            return (
                f"market reservation needs an entry under reservations with instance_type {offering.instance_type} "
                f"and zone {offering.zone}"
            )
        return ""

    def reservation(self, instance_type: str, zone: str) -> AwsReservation | None:
        """The reservation that an offering is taken from."""
        return next((r for r in self.reservations if (r.instance_type, r.zone) == (instance_type, zone)), None)


class GcpReservation(Model):
    """A reservation of Compute Engine that offerings of market ``reservation`` are taken from."""

    name: Name
    instance_type: str
    zone: str


class GcpProvider(CloudProvider):
    """Google Compute Engine."""

    type: Literal["gcp"]
    project: str
    region: str
    endpoint_url: str | None = None
    """For another server than Google's; it is then spoken to without credentials."""
    image: str
    """``projects/P/global/images/NAME``, or ``…/images/family/NAME`` for the newest of a family."""
    subnetwork: str
    """Name of one in the region, or its whole path."""
    zones: tuple[str, ...] = ()
    """Zones that an offering of zone ``any`` may be made in; empty: all of the region."""
    service_account: str | None = None
    """E-mail of the account that nodes have: it lets them reach the checkpoints."""
    network_tags: tuple[str, ...] = ()
    disk_gb: Annotated[int, Field(ge=10)] | None = None
    disk_type: str = "pd-balanced"
    placement_policy: str | None = None
    """Name of a compact placement policy in the region: nodes of a job that needs several are made under it."""
    reservations: tuple[GcpReservation, ...] = ()
    labels: Mapping[str, str] = {}
    """Labels of the site's own, on every instance."""
    node_program: Path = Path("/opt/spotburst/bin/spotburst")
    """Where the image has spotburst."""

    @field_validator("labels")
    @classmethod
    def _own_labels(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for key, text in value.items():
            if key.startswith("spotburst-"):
                raise ValueError(f"{key!r}: keys that begin with spotburst- are taken; choose another")
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", text):
                raise ValueError(f"{key}={text!r}: labels of Compute Engine take lower case, digits, - and _")
        if len(value) > 40:
            raise ValueError(f"{len(value)} labels: at most 40 (Compute Engine takes 64, spotburst needs some itself)")
        return value

    def unfit(self, offering: OfferingConfig) -> str:
        """See ``CloudProvider``."""
        anywhere = offering.zone in ANY_ZONE
        if not anywhere and not offering.zone.startswith(self.region + "-"):
            return f"zone {offering.zone!r} is not in region {self.region}; write one such as {self.region}-a, or any"
        if anywhere and self.placement_policy is not None:
            return "zone any can't be had with placement_policy, which lies in one zone: write the zone"
        if offering.market is Market.RESERVATION and self.reservation(offering.instance_type, offering.zone) is None:
            return (
                f"market reservation needs an entry under reservations with instance_type {offering.instance_type} "
                f"and zone {offering.zone}"
            )
        return ""

    def reservation(self, instance_type: str, zone: str) -> GcpReservation | None:
        """The reservation that an offering is taken from."""
        return next((r for r in self.reservations if (r.instance_type, r.zone) == (instance_type, zone)), None)


class AzureProvider(CloudProvider):
    """Azure virtual machines."""

    type: Literal["azure"]
    subscription: str
    resource_group: str
    """One of the nodes' own: all that is made lies in it."""
    region: str
    endpoint_url: str | None = None
    """For another server than Azure's; it is then spoken to without credentials."""
    image: str
    """``/subscriptions/…`` of an image, or ``publisher:offer:sku:version``."""
    subnet: str
    """``/subscriptions/…/subnets/NAME``."""
    ssh_public_key: str
    """Azure makes no Linux machine without one, or a password."""
    admin_user: Name = "azureuser"
    identity: str | None = None
    """``/subscriptions/…`` of a user-assigned identity that nodes have: it lets them reach the checkpoints."""
    disk_gb: Annotated[int, Field(ge=10)] | None = None
    disk_type: str = "Premium_LRS"
    proximity_placement_group: str | None = None
    """``/subscriptions/…`` of one: nodes of a job that needs several are made in it."""
    tags: Mapping[str, str] = {}
    """Tags of the site's own, on every machine."""
    node_program: Path = Path("/opt/spotburst/bin/spotburst")
    """Where the image has spotburst."""

    @field_validator("tags")
    @classmethod
    def _own_tags(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for key in value:
            if key.lower().startswith(("microsoft", "azure", "windows", "spotburst-")):
                raise ValueError(f"{key!r}: keys that begin with microsoft, azure, windows or spotburst- are taken")
        if len(value) > 40:
            raise ValueError(f"{len(value)} tags: at most 40 (Azure takes 50, spotburst needs some itself)")
        return value

    def unfit(self, offering: OfferingConfig) -> str:
        """See ``CloudProvider``."""
        if offering.zone not in (*ANY_ZONE, "1", "2", "3"):
            return f"zone {offering.zone!r} is none of Azure's: 1, 2, 3, or any"
        if offering.market is Market.RESERVATION:
            return "market reservation can't be had here; there are spot and on-demand"
        return ""

    def scatters(self, offering: OfferingConfig) -> bool:
        """See ``CloudProvider``. Each machine is a call of its own."""
        return offering.zone in ANY_ZONE and self.proximity_placement_group is None


ProviderConfig = Annotated[LocalProvider | AwsProvider | GcpProvider | AzureProvider, Field(discriminator="type")]
