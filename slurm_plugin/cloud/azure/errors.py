"""Azure's error codes, sorted. Source: Azure documentation, "Troubleshoot VM allocation failures", "Resolve errors for SKU not available"
and "Resolve errors for resource quotas"."""

from __future__ import annotations

import re

from slurm_plugin.cloud.provider import RefusalKind, Refused
from slurm_plugin.cloud.refusals import NO_ANSWER as NO_ANSWER
from slurm_plugin.cloud.refusals import CloudError, Codes
from slurm_plugin.cloud.refusals import most_telling as most_telling

CREATING = "Creating"
"""Our own code for a machine of which it is not decided yet whether it comes."""
NAME_IN_USE = "NameInUse"
"""Our own code for a node whose name an earlier machine still has."""

CODES = Codes.of(
    no_capacity=[
        "AllocationFailed",
        "AllocationTimeout",
        "OverconstrainedAllocationRequest",
        "OverconstrainedZonalAllocationRequest",
        "SkuNotAvailable",
        "ZonalAllocationFailed",
        "ZoneNotAllowed",
    ],
    quota=["QuotaExceeded", "SpotQuotaExceeded"],
    price=["MaxPriceTooLow"],
    try_later=[
        "Conflict",
        "InternalExecutionError",
        "InternalServerError",
        "RetryableError",
        "ServerTimeout",
        "TooManyRequests",
        CREATING,
        NAME_IN_USE,
        NO_ANSWER,
    ],
    mistake=["AuthorizationFailed", "ImageNotFound", "InvalidParameter", "NotFound", "ResourceGroupNotFound"],
)


class ApiError(CloudError):
    """Azure answered with an error, in its own code and words. ``retry_after``: its own wish, in seconds."""

    def __init__(self, code: str, text: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.status, self.retry_after = code, text, status, retry_after

    @property
    def kind(self) -> RefusalKind:
        """What it means."""
        if self.code == "OperationNotAllowed":
            # One code for much: over quota, over the price, or simply not allowed.
            if re.search(r"\bquota\b", self.text, re.IGNORECASE):
                return RefusalKind.QUOTA
            if re.search(r"max(imum)? price", self.text, re.IGNORECASE):
                return RefusalKind.PRICE
        return CODES.kind(self.code, self.status)

    @property
    def not_permitted(self) -> bool:
        """See ``CloudError``."""
        return self.status == 403

    @property
    def exists(self) -> bool:
        """Nothing was made, since there is a machine of that name."""
        return self.status == 412 or self.code == "PreconditionFailed"

    def refuse(self, launch_id: str) -> Refused:
        """The refusal of one launch."""
        limit = re.search(r"Current Limit: (\d{1,18})", self.text)
        more = re.search(r"Additional Required: (\d{1,18})", self.text)
        small = limit is not None and int(limit[1]) < (int(more[1]) if more else 1)
        refused = CODES.refuse(launch_id, self.code, self.text, self.status)
        kind = self.kind
        permanent = kind is RefusalKind.QUOTA and small
        return Refused(launch_id, kind, refused.code, refused.text, permanent, refused.known)
