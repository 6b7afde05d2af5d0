"""Nodes against quotas, as values."""

from __future__ import annotations

import pytest

from slurm_plugin.checks.finding import Finding, State
from slurm_plugin.checks.quotas import Wanted, quotas
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.quotas import Quota, Take, Ways

SPOT, DEAR = (Offering("c", "r", "any", "t", market) for market in (Market.SPOT, Market.ON_DEMAND))


def quota(limit: float, used: float | None = None, name: str = "q") -> Quota:
    return Quota(name, "r", limit, used, "vCPUs", "ask")


def judged(ways: dict[str, Ways], machines: dict[str, int] | None = None, nodes: int = 4) -> list[Finding]:
    return list(quotas([Wanted("s", nodes, (SPOT, DEAR))], ways, machines))


@pytest.mark.parametrize("each", [0.0, -4.0, float("nan"), float("inf")])
def test_a_machine_that_takes_nothing_is_none(each: float) -> None:
    with pytest.raises(ValueError, match="takes"):
        Take(quota(16), each)


def test_what_others_use_leaves_less_room_and_is_no_fault() -> None:
    ways: dict[str, Ways] = {SPOT.id: ((Take(quota(16, 16), 4),),)}
    assert judged(ways) == [], "whose use it is, is not known"
    (some,) = judged(ways, {SPOT.id: 2})
    assert (some.state, "2 of 4 nodes fit beside what others use (8)" in some.detail) == (State.NOTE, True)
    (none,) = judged(ways, {})
    assert (none.state, "0 of 4 nodes fit" in none.detail) == (State.NOTE, True)
    assert judged(ways, {SPOT.id: 4}) == [], "all of it is this cluster's own"


def test_the_tightest_of_several_quotas_and_the_best_of_several_ways() -> None:
    wide, narrow = Take(quota(100, name="wide"), 4), Take(quota(3, name="narrow"), 4)
    (found,) = judged({DEAR.id: ((wide, narrow),)})
    assert (found.state, "narrow in r is 3 vCPUs" in found.detail) == (State.FAULT, True)
    assert judged({DEAR.id: ((narrow,), (wide,))}) == []
    full = Take(quota(100, 100, "full"), 4)
    (found,) = judged({DEAR.id: ((full, narrow),)}, {})
    assert found.state is State.FAULT, "that others use the one now is not why none can ever start"


def test_offerings_of_one_quota_are_told_of_together() -> None:
    take = Take(quota(4), 4)
    (found,) = judged({SPOT.id: ((take,),), DEAR.id: ((take,),)})
    assert f"{SPOT.id}, {DEAR.id}: q in r is 4 vCPUs, and a machine takes 4: 1 of 4 nodes fit" in found.detail
    assert found.fix == "ask: 16 are enough for all 4 nodes"
    assert judged({SPOT.id: ()}) == [], "nothing counts it"
