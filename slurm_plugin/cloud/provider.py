"""What a cloud must do for spotburst: launch, terminate, list. Nothing else is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


class Market(str, Enum):
    """How the capacity is bought."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    RESERVATION = "reservation"


@dataclass(frozen=True, slots=True)
class Offering:
    """One thing that can be bought. Its ``id`` is stable and is what cools down and what rates are kept for."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market

    @property
    def id(self) -> str:
        """``provider/region/zone/type/market``."""
        return f"{self.provider}/{self.region}/{self.zone}/{self.instance_type}/{self.market.value}"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine to make, for one Slurm node.

    ``launch_id`` is the idempotency token: recorded in the ledger before the call, given to the cloud as client token or
    request id, and put on the machine as a tag. Requests with the same ``gang`` come all or not at all.
    """

    launch_id: str
    node: str
    nodeset: str
    offering: Offering
    node_config: Mapping[str, Any] = field(default_factory=dict)
    """What the node finds as ``/etc/spotburst/node.json`` (job_wrapper/node_config.py)."""
    gang: str | None = None
    zone: str = ""
    """Where the offering leaves its zone to the cloud: the one to make the machine in all the same, beside others of its job."""


class RefusalKind(str, Enum):
    """Why a machine was not made. Only NO_CAPACITY and PRICE cool an offering; QUOTA and MISTAKE are said to the user.

    TRY_LATER (a rate limit, no answer, the cloud's own fault) concludes nothing, not even that there is no machine: the same launch id is
    asked again.
    """

    NO_CAPACITY = "no-capacity"
    QUOTA = "quota"
    PRICE = "price"
    TRY_LATER = "try-later"
    MISTAKE = "mistake"


@dataclass(frozen=True, slots=True)
class Launched:
    """The cloud accepted: this machine exists from now on."""

    launch_id: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The cloud refused, in its own code and words.

    ``permanent``: no waiting helps, only a person does (every mistake; a quota below what one machine needs).
    """

    launch_id: str
    kind: RefusalKind
    code: str
    text: str
    permanent: bool = False
    known: bool = True
    """False where the code stands in no table: taken for a mistake, it is said to the user, and yet asked again after a while."""

    def __post_init__(self) -> None:
        if self.kind is RefusalKind.MISTAKE:
            object.__setattr__(self, "permanent", True)


class InstanceState(str, Enum):
    """A machine's life as far as scheduling cares. ``stopped`` spot machines are GONE: lost, and still to be deleted."""

    PENDING = "pending"
    RUNNING = "running"
    RECLAIMING = "reclaiming"
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as the cloud's own listing shows it, found by the cluster's tag.

    ``deadline`` (Unix seconds) and ``notice_id`` are set when the cloud itself tells of a reclaim. ``address`` is "" until known.
    ``billed`` is False for a machine that is only remembered.
    """

    instance_id: str
    launch_id: str
    node: str
    nodeset: str
    state: InstanceState
    launched: float
    offering_id: str
    address: str = ""
    deadline: float | None = None
    notice_id: str | None = None
    billed: bool = True
    zone: str = ""
    """Where it is, if the cloud tells; needed only of offerings that leave their zone to the cloud."""


class Provider(Protocol):
    """A cloud. Methods raise ``CloudUnavailable`` when the answer is unknown, never return less than the truth."""

    name: str

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        """Ask for machines; one answer a request, in order. Returns before they have booted, within a few seconds.

        Calling again with the same ``launch_id`` never makes a second machine: it completes what an earlier call began, whoever made that
        call and wherever it died. A single request's fault is its own ``Refused``; requests of one ``gang`` come all or not at all.
        """
        ...

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End machines and delete what they leave. Unknown and ended ones are no error; one never stops the others."""
        ...

    def instances(self) -> list[Instance]:
        """Every machine of this cluster that the cloud knows, ended ones only while the cloud still shows them.

        All or nothing: an error on any page is ``CloudUnavailable``, never a shorter list. A machine that was just made and that the cloud
        does not list yet is PENDING. One whose tags name no node is listed under its instance id, so that it is ended in the end.
        """
        ...
