"""What can be bought in the embedded cloud, and the refusals that a test or a person ordered: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_plugin.cloud.provider import LaunchRequest, Market, Offering, RefusalKind

CODES: Mapping[RefusalKind, str] = {
    RefusalKind.NO_CAPACITY: "InsufficientInstanceCapacity",
    RefusalKind.QUOTA: "VcpuLimitExceeded",
    RefusalKind.PRICE: "SpotMaxPriceTooLow",
    RefusalKind.TRY_LATER: "RequestLimitExceeded",
    RefusalKind.MISTAKE: "InvalidParameterValue",
}
"""Each kind in AWS's words."""


def pool(zone: str, instance_type: str, market: Market | str) -> str:
    """The key of one pool of capacity: ``zone/type/market``."""
    return f"{zone}/{instance_type}/{Market(market).value}"


def pool_of(offering: Offering) -> str:
    """The pool that an offering draws from."""
    return pool(offering.zone, offering.instance_type, offering.market)


@dataclass(frozen=True)
class Verdict:
    """Why a group of requests is refused."""

    kind: RefusalKind
    code: str
    text: str


def judge(
    group: Sequence[LaunchRequest],
    in_use: Mapping[str, int],
    limits: Mapping[str, int],
    refusals: Sequence[Mapping[str, Any]],
) -> tuple[Verdict | None, list[dict[str, Any]]]:
    """Whether the whole group fits: a refusal ordered for its pool first, then the pools' limits.

    Returns the verdict (None: granted) and the refusals that are still to come.
    """
    pools = [pool_of(r.offering) for r in group]
    left = [dict(r) for r in refusals]
    for refusal in left:
        if refusal["pool"] in ("", *pools) and refusal["times"] != 0:
            refusal["times"] -= 1
            verdict = Verdict(RefusalKind(refusal["kind"]), refusal["code"], refusal["text"])
            return verdict, [r for r in left if r["times"] != 0]
    for name in sorted(set(pools)):
        limit = limits.get(name)
        if limit is not None and in_use.get(name, 0) + pools.count(name) > limit:
            return (
                Verdict(
                    RefusalKind.NO_CAPACITY,
                    CODES[RefusalKind.NO_CAPACITY],
                    f"We currently do not have sufficient capacity for {name}: {limit} in all, {in_use.get(name, 0)} in use, "
                    f"{pools.count(name)} more asked for",
                ),
                left,
            )
    return None, left
