"""Compute Engine's error codes, sorted. Source: Compute Engine documentation, "Troubleshooting VM creation" and "Bulk creation errors".

An operation's errors have codes in capitals; a refused call has a ``reason`` in camel case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_plugin.cloud import refusals
from slurm_plugin.cloud.provider import RefusalKind, Refused
from slurm_plugin.cloud.refusals import NO_ANSWER as NO_ANSWER
from slurm_plugin.cloud.refusals import CloudError, Codes

THROTTLES = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "concurrentLimitExceeded"})
TAKEN = frozenset({"RESOURCE_ALREADY_EXISTS", "alreadyExists"})
RUNNING = "OperationRunning"
"""Our own code for an operation that has not ended yet."""
NAME_IN_USE = "NameInUse"
"""Our own code for a node whose name an earlier machine still has."""
EMPTY = "EmptyOperation"
"""Our own code for an operation that ended without an error and without its machine."""

CODES = Codes.of(
    no_capacity=[
        "RESOURCE_POOL_EXHAUSTED",
        "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "VM_MIN_COUNT_NOT_REACHED",
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        EMPTY,
    ],
    quota=["QUOTA_EXCEEDED", "quotaExceeded", "limitExceeded"],
    try_later=[
        *THROTTLES,
        "INTERNAL_ERROR",
        "RESOURCE_NOT_READY",
        "RESOURCE_OPERATION_RATE_EXCEEDED",
        "SERVICE_UNAVAILABLE",
        "backendError",
        "internalError",
        "resourceNotReady",
        NAME_IN_USE,
        NO_ANSWER,
        RUNNING,
    ],
    mistake=["RESOURCE_NOT_FOUND", "forbidden", "invalid", "notFound", "required", *TAKEN],
)


class ApiError(CloudError):
    """Compute Engine answered with an error, in its own code and words. ``limit``: of the quota, where it tells."""

    def __init__(self, code: str, text: str, status: int | None = None, limit: float | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.status, self.limit = code, text, status, limit

    @property
    def kind(self) -> RefusalKind:
        """What it means."""
        return CODES.kind(self.code, self.status)

    @property
    def not_permitted(self) -> bool:
        """See ``CloudError``."""
        return self.status == 403 and self.code not in THROTTLES

    def refuse(self, launch_id: str, instance_type: str) -> Refused:
        """The refusal of one launch."""
        permanent = self.kind is RefusalKind.QUOTA and self._too_small(instance_type)
        return CODES.refuse(launch_id, self.code, self.text, self.status, permanent=permanent)

    def _too_small(self, instance_type: str) -> bool:
        """Whether the quota is below what one machine needs, so that waiting helps nothing."""
        limit = self.limit
        told = re.search(r"Limit: (\d+(?:\.\d+)?)", self.text)
        if limit is None and told:
            limit = float(told[1])
        return limit is not None and limit < needs(instance_type, self.text)


def needs(instance_type: str, metric: str) -> float:
    """How much of a quota one machine takes, by the names of both; 1 where they do not tell."""
    pattern = r"-(\d+)g\b" if "GPU" in metric else r"-(\d+)\b(?!g)" if "CPUS" in metric else "$^"
    found = re.search(pattern, instance_type)
    return float(found[1]) if found else 1.0


def most_telling(errors: Sequence[ApiError]) -> ApiError:
    """The error that says best why a machine did not come; none at all counts as no capacity."""
    if not errors:
        return ApiError(EMPTY, "the operation ended without an error, and the machine is not there")
    return refusals.most_telling(errors)
