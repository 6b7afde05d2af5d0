"""Which offering next: order, cooling that grows and forgives, reclaims that only put last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.cloud.provider import Market, Offering, RefusalKind
from slurm_plugin.placement import (
    FIRST_COOLING,
    FORGIVEN_AFTER,
    LONGEST_COOLING,
    OfferingState,
    describe,
    forgiven,
    launched,
    plan,
    reclaimed,
    refused,
    same_zone,
)

A = Offering("p", "r", "a", "t", Market.SPOT)
B = Offering("p", "r", "b", "t", Market.SPOT)
C = Offering("q", "r", "a", "t", Market.ON_DEMAND)
NOW = 1000.0


def test_the_order_is_the_administrators() -> None:
    assert plan((B, A, C), {}, NOW).ready == (B.id, A.id, C.id)


def test_what_cools_is_passed_over_and_told_with_the_clouds_words() -> None:
    states = {A.id: refused(OfferingState(A.id), RefusalKind.NO_CAPACITY, "Insufficient: none left", NOW)}
    found = plan((A, B), states, NOW + 1)
    assert found.ready == (B.id,)
    assert (found.passed[0].offering_id, found.passed[0].why) == (A.id, "Insufficient: none left")
    assert found.next_at == NOW + FIRST_COOLING
    assert plan((A, B), states, NOW + FIRST_COOLING).ready == (A.id, B.id)
    assert "none left; next try in 29 s" in describe(plan((A,), states, NOW + 1), NOW + 1)


def test_a_reclaimed_zone_comes_last_but_is_still_asked() -> None:
    states = {A.id: reclaimed(OfferingState(A.id), NOW)}
    assert plan((A, B), states, NOW).ready == (B.id, A.id)
    assert plan((A,), states, NOW).ready == (A.id,)


def test_a_provider_that_does_not_answer_is_waited_for() -> None:
    found = plan((A, C), {}, NOW, silent_providers={"p"})
    assert found.ready == (C.id,)
    assert found.passed[0].why == "p does not answer"


def test_refusals_in_a_row_cool_ever_longer_up_to_a_bound_and_time_forgives() -> None:
    state, waits, now = OfferingState(A.id), [], NOW
    for _ in range(8):
        state = refused(state, RefusalKind.NO_CAPACITY, "x", now)
        waits.append(state.ready_at() - now)
        now = state.ready_at()
    assert waits == sorted(waits)
    assert waits[0] == FIRST_COOLING
    assert waits[-1] == LONGEST_COOLING
    assert forgiven(state, now + FORGIVEN_AFTER * 3).failures == 5
    later = refused(state, RefusalKind.NO_CAPACITY, "x", now + FORGIVEN_AFTER * 100)
    assert later.ready_at() - (now + FORGIVEN_AFTER * 100) == FIRST_COOLING
    assert launched(state, now).failures == 4


def test_only_want_of_capacity_and_price_cool_and_try_later_changes_nothing() -> None:
    state = OfferingState(A.id)
    for kind in RefusalKind:
        after = refused(state, kind, "x", NOW)
        assert (after.refused_until > NOW) == (kind in (RefusalKind.NO_CAPACITY, RefusalKind.PRICE))
        assert (after.stopped_until > NOW) == (kind in (RefusalKind.QUOTA, RefusalKind.MISTAKE))
    assert refused(state, RefusalKind.TRY_LATER, "x", NOW) == state


def test_a_reclaim_speaks_against_interruptible_offerings_of_its_zone() -> None:
    other = Offering("p", "r", "a", "larger", Market.SPOT)
    on_demand = Offering("p", "r", "a", "t", Market.ON_DEMAND)
    assert set(same_zone(A, [A, B, C, other, on_demand])) == {A.id, other.id}
    assert same_zone(on_demand, [A, on_demand]) == (A.id, on_demand.id)


@given(st.lists(st.tuples(st.sampled_from(list(RefusalKind)), st.floats(0, 1e5)), max_size=30))
def test_no_history_puts_an_offering_off_for_longer_than_the_bound(history: list[tuple[RefusalKind, float]]) -> None:
    state, now = OfferingState(A.id), NOW
    for kind, gap in history:
        now += gap
        state = launched(state, now) if kind is RefusalKind.TRY_LATER else refused(state, kind, "x", now)
        assert state.failures >= 0
        assert state.ready_at() <= now + LONGEST_COOLING
    assert plan((A,), {A.id: state}, now + LONGEST_COOLING).ready == (A.id,)
