"""Policies, filters, and on-demand by rule: whatever is known, nothing that is not allowed is bought, and nothing is left out without a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.cloud.provider import Market, Offering, RefusalKind
from slurm_plugin.placement import (
    Experience,
    Interruptible,
    Knowledge,
    Need,
    OfferingState,
    Order,
    Passed,
    Rules,
    Stance,
    cleared,
    describe,
    excluded,
    interruption_rate,
    launched,
    plan,
    refused,
    stance,
)

NOW = 1_800_000_000.0
SPOT_A = Offering("p", "r1", "a", "t", Market.SPOT)
SPOT_B = Offering("p", "r1", "b", "t", Market.SPOT)
FAR = Offering("p", "r2", "c", "t", Market.SPOT)
SAFE = Offering("p", "r1", "a", "t", Market.ON_DEMAND)
PAID = Offering("p", "r1", "b", "t", Market.RESERVATION)
ALL = (SPOT_A, SPOT_B, FAR, SAFE, PAID)


def ready(rules: Rules, need: Need | None = None, known: Knowledge | None = None) -> list[Offering]:
    found = plan(ALL, {}, NOW, (), rules, need or Need(), known)
    return [next(o for o in ALL if o.id == id_) for id_ in found.ready]


def test_cheapest_takes_what_is_paid_for_then_by_price_then_the_unknown() -> None:
    known = Knowledge(prices={SPOT_A.id: 3.0, SPOT_B.id: 2.0, SAFE.id: 5.0})
    assert ready(Rules(policy=Order.CHEAPEST), known=known) == [PAID, SPOT_B, SPOT_A, SAFE, FAR]


def test_most_available_goes_by_what_was_seen_and_keeps_on_demand_for_last() -> None:
    seen = {SPOT_A.id: Experience(hours=100, reclaims=20), SPOT_B.id: Experience(hours=100, reclaims=1)}
    assert ready(Rules(policy=Order.MOST_AVAILABLE), known=Knowledge(seen=seen)) == [PAID, SPOT_B, FAR, SPOT_A, SAFE]


def test_one_lucky_hour_does_not_outweigh_a_long_good_record() -> None:
    assert interruption_rate(Market.SPOT, Experience(hours=1)) > interruption_rate(
        Market.SPOT, Experience(hours=500, reclaims=5)
    )


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        (Rules(regions=("r2",)), [FAR]),
        (Rules(zones=("b", "c")), [SPOT_B, FAR, PAID]),
        (Rules(interruptible=Interruptible.NEVER), [SAFE, PAID]),
        (Rules(interruptible=Interruptible.REQUIRED), [SPOT_A, SPOT_B, FAR]),
        (Rules(gpu_types=("a100",)), [SPOT_B]),
        (Rules(max_price=2.5), [SPOT_B, PAID]),
    ],
)
def test_filters(rules: Rules, left: list[Offering]) -> None:
    known = Knowledge(prices={SPOT_A.id: 3.0, SPOT_B.id: 2.0}, gpus={SPOT_B.id: "a100", SAFE.id: "t4"})
    assert ready(rules, known=known) == left
    found = plan(ALL, {}, NOW, (), rules, Need(), known)
    assert all("placement." in choice.why for choice in found.passed)


def test_on_demand_waits_for_its_rule() -> None:
    rules = Rules(on_demand_after_failures=3, on_demand_after_wait=600.0)
    assert SAFE not in ready(rules)
    assert SAFE not in ready(rules, Need(failures=2, waited=599.0))
    assert ready(rules, Need(waited=600.0)) == list(ALL), "a wait opens it, in its place"
    assert ready(rules, Need(failures=3))[:2] == [SAFE, PAID], "failures put what can't be taken back first"
    assert SPOT_A in ready(rules, Need(failures=3)), "and the rest is better than nothing"
    waits = plan((SAFE,), {}, NOW, (), rules, Need(waited=100.0))
    assert waits.next_at == NOW + 500.0


def test_the_final_stretch_goes_to_what_can_not_be_taken_back() -> None:
    rules = Rules(final_on_demand=0.1)
    assert ready(rules, Need(left=0.11))[0] == SPOT_A
    assert ready(rules, Need(left=0.1))[:2] == [SAFE, PAID]
    assert ready(rules, Need(left=None))[0] == SPOT_A


def test_a_deadline_that_could_be_missed_does_too() -> None:
    rules = Rules(policy=Order.DEADLINE)
    assert ready(rules, Need(remaining=3600.0, deadline=NOW + 4 * 3600.0))[0] == SPOT_A
    assert ready(rules, Need(remaining=3600.0, deadline=NOW + 3700.0))[0] == SAFE
    assert ready(rules, Need(deadline=NOW + 1.0))[0] == SPOT_A, "nothing is known of the run"


def test_what_no_waiting_helps_is_not_asked_again_until_it_is_cleared() -> None:
    state = refused(OfferingState(SPOT_A.id), RefusalKind.MISTAKE, "AuthFailure: no", NOW, permanent=True)
    for later in (1.0, 1e6, 1e9):
        found = plan((SPOT_A,), {SPOT_A.id: state}, NOW + later)
        assert (found.ready, found.next_at, found.passed[0].kind) == ((), None, Passed.PERMANENT)
    assert "until an administrator has seen to it" in describe(found, NOW)
    assert plan((SPOT_A,), {SPOT_A.id: cleared(state)}, NOW).ready == (SPOT_A.id,)
    assert plan((SPOT_A,), {SPOT_A.id: launched(state, NOW)}, NOW).ready == (SPOT_A.id,)


def test_a_thousand_machines_refused_at_once_are_one_refusal() -> None:
    state = OfferingState(SPOT_A.id)
    for _ in range(1000):
        state = refused(state, RefusalKind.NO_CAPACITY, "none", NOW)
    assert state == refused(OfferingState(SPOT_A.id), RefusalKind.NO_CAPACITY, "none", NOW)


some_rules = st.builds(
    Rules,
    policy=st.sampled_from(Order),
    regions=st.sampled_from([(), ("r1",), ("r2",)]),
    zones=st.sampled_from([(), ("a",), ("a", "b")]),
    gpu_types=st.sampled_from([(), ("a100",)]),
    interruptible=st.sampled_from(Interruptible),
    max_price=st.none() | st.floats(0.1, 10),
    on_demand_after_failures=st.none() | st.integers(1, 5),
    on_demand_after_wait=st.none() | st.floats(0, 1e5),
    final_on_demand=st.floats(0, 1),
)
some_needs = st.builds(
    Need,
    failures=st.integers(0, 9),
    waited=st.floats(0, 1e6),
    left=st.none() | st.floats(0, 1),
    remaining=st.none() | st.floats(0, 1e6),
    deadline=st.none() | st.floats(NOW - 1e6, NOW + 1e6),
)
some_knowledge = st.builds(
    Knowledge,
    prices=st.dictionaries(st.sampled_from([o.id for o in ALL]), st.floats(0, 20)),
    seen=st.dictionaries(
        st.sampled_from([o.id for o in ALL]),
        st.builds(Experience, st.floats(0, 1e5), st.integers(0, 99), st.integers(0, 99), st.integers(0, 9999)),
    ),
    gpus=st.dictionaries(st.sampled_from([o.id for o in ALL]), st.sampled_from(["a100", "t4"])),
)
some_states = st.dictionaries(
    st.sampled_from([o.id for o in ALL]),
    st.builds(
        OfferingState,
        st.just("?"),
        st.integers(0, 9),
        st.floats(NOW - 100, NOW + 100),
        st.floats(NOW - 100, NOW + 100) | st.just(math.inf),
        st.floats(NOW - 100, NOW + 100),
    ),
)


@given(some_rules, some_needs, some_knowledge, some_states, st.permutations(ALL))
def test_every_offering_is_either_asked_or_passed_over_with_a_reason(
    rules: Rules, need: Need, known: Knowledge, states: dict[str, OfferingState], offerings: list[Offering]
) -> None:
    found = plan(offerings, states, NOW, (), rules, need, known)
    assert sorted([*found.ready, *(c.offering_id for c in found.passed)]) == sorted(o.id for o in ALL)
    assert all(choice.why for choice in found.passed)
    by_id = {o.id: o for o in ALL}
    assert not any(excluded(by_id[id_], rules, known) for id_ in found.ready)
    assert all(states[id_].ready_at() <= NOW for id_ in found.ready if id_ in states)
    how, _ = stance(rules, need, NOW)
    markets = [by_id[id_].market for id_ in found.ready]
    if how is Stance.PATIENT:
        assert Market.ON_DEMAND not in markets
    if how is Stance.SAFE:
        assert markets == sorted(markets, key=lambda m: m is Market.SPOT)
    if found.next_at is not None:
        assert math.isfinite(found.next_at)


@given(some_rules, some_needs, st.floats(0, 1e6), st.integers(0, 9))
def test_waiting_and_failing_only_ever_open_more(rules: Rules, need: Need, more: float, failures: int) -> None:
    before = set(plan(ALL, {}, NOW, (), rules, need).ready)
    later = Need(need.failures + failures, need.waited + more, need.left, need.remaining, need.deadline)
    assert before <= set(plan(ALL, {}, NOW, (), rules, later).ready)


@given(st.floats(0, 1e4), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_more_reclaims_never_look_better_nor_more_hours_worse(
    hours: float, reclaims: int, refusals: int, more: int
) -> None:
    rate = interruption_rate(Market.SPOT, Experience(hours, 0, reclaims, refusals))
    assert rate > 0
    assert interruption_rate(Market.SPOT, Experience(hours, 0, reclaims + more, refusals)) >= rate
    assert interruption_rate(Market.SPOT, Experience(hours + more, 0, reclaims, refusals)) <= rate
