"""EC2's error codes, sorted. Source: Amazon EC2 API Reference, "Error codes", and CreateFleet's ``Errors``."""

from __future__ import annotations

import re

from slurm_plugin.cloud import refusals
from slurm_plugin.cloud.provider import RefusalKind, Refused
from slurm_plugin.cloud.refusals import NO_ANSWER as NO_ANSWER
from slurm_plugin.cloud.refusals import CloudError, Codes

THROTTLES = frozenset(
    {"RequestLimitExceeded", "Throttling", "ThrottlingException", "EC2ThrottledException", "RequestThrottled"}
)
UNKNOWN_INSTANCE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
NO_TEMPLATE = (
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.VersionNotFound",
)
"""The launch template, or the version, is not there: it is ours, and made anew."""
NOT_PERMITTED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
EMPTY = "EmptyFleet"
"""Our own code for an answer with neither instances nor errors."""

CODES = Codes.of(
    no_capacity=[
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "ReservationCapacityExceeded",
        "UnfulfillableCapacity",
        "Unsupported",  # the type is not in this zone
        EMPTY,
    ],
    quota=["InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "VolumeLimitExceeded"],
    price=["SpotMaxPriceTooLow"],
    try_later=[
        *THROTTLES,
        "InternalError",
        "InternalFailure",
        "RequestTimeout",
        "ServerInternal",
        "ServiceUnavailable",
        "Unavailable",
        *NO_TEMPLATE,
        NO_ANSWER,
    ],
    mistake=["AuthFailure", "IdempotentParameterMismatch", "InvalidAMIID.NotFound", "UnauthorizedOperation"],
)


class ApiError(CloudError):
    """EC2 answered with an error, in its own code and words."""

    def __init__(self, code: str, text: str, status: int | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.status = code, text, status

    @property
    def kind(self) -> RefusalKind:
        """What it means."""
        return CODES.kind(self.code, self.status)

    @property
    def not_permitted(self) -> bool:
        """See ``CloudError``."""
        return self.code in NOT_PERMITTED

    def refuse(self, launch_id: str) -> Refused:
        """The refusal of one launch."""
        # "You have requested more vCPU capacity than your current vCPU limit of 0 allows …"
        nothing = re.search(r"\blimit of 0\b", self.text) is not None
        return CODES.refuse(
            launch_id, self.code, self.text, self.status, permanent=nothing and self.kind is RefusalKind.QUOTA
        )


def most_telling(errors: list[ApiError]) -> ApiError:
    """The error that says best why a fleet did not come; an answer without any counts as no capacity."""
    if not errors:
        return ApiError(EMPTY, "the fleet call succeeded, with no instances and no errors in its answer")
    return refusals.most_telling(errors)
