"""The interval that ``auto`` chooses: near the least loss, within its limits, and moved the right way by what it is chosen from."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from job_wrapper.interval import (
    FIRST,
    LONGEST,
    REMEMBERED,
    SHORTEST,
    USUAL_RATES,
    Basis,
    Saved,
    choose,
    notable,
    optimum,
    rate_of,
    remember,
    rounded,
    waste,
)

RATES = st.floats(1e-5, 60.0)
SECONDS = st.floats(0.0, 20_000.0)
SAVES = st.lists(st.builds(Saved, SECONDS, SECONDS), min_size=1, max_size=REMEMBERED).map(tuple)
BASES = st.builds(Basis, RATES, SAVES, SECONDS, st.none() | st.floats(1.0, 1e7))


@given(BASES)
def test_limits_hold_whatever_was_measured(basis: Basis) -> None:
    seconds, why = choose(basis)
    saves = len(basis.saved)
    stalls, uploads = sorted(s.stall for s in basis.saved), sorted(s.upload for s in basis.saved)
    stall = (stalls[(saves - 1) // 2] + stalls[saves // 2]) / 2
    upload = (uploads[(saves - 1) // 2] + uploads[saves // 2]) / 2
    floor = max(SHORTEST, stall / 0.1, stall + upload)
    assert seconds >= SHORTEST
    assert stall <= 0.1 * seconds * (1 + 1e-9), "at most a tenth of the time"
    assert seconds >= (stall + upload) * (1 - 1e-9), "one save is through before the next begins"
    assert seconds <= max(LONGEST, floor) * (1 + 1e-9)
    if basis.expected is not None:
        assert seconds <= max(basis.expected / 4, floor) * (1 + 1e-9), "four in the run, where a tenth allows it"
    assert why


@given(BASES, st.floats(1.0, 100.0))
def test_what_is_taken_back_more_often_is_never_saved_less_often(basis: Basis, times: float) -> None:
    more = basis._replace(rate=basis.rate * times)
    assume(basis.restore < 0.5 * 3600 / more.rate)
    assert choose(more).seconds <= choose(basis).seconds * (1 + 1e-9)


@given(BASES, SECONDS)
def test_a_longer_way_back_never_makes_it_longer(basis: Basis, more: float) -> None:
    assert choose(basis._replace(restore=basis.restore + more)).seconds <= choose(basis).seconds * (1 + 1e-9)


@given(RATES, st.floats(0.01, 1000.0), SECONDS)
def test_a_longer_stall_never_makes_it_shorter(rate: float, stall: float, upload: float) -> None:
    assume(stall * 4 < 3600 / rate)
    short, long = (choose(Basis(rate, (Saved(seconds, upload),))).seconds for seconds in (stall, stall * 2))
    assert short <= long * (1 + 1e-9)


@given(st.floats(0.01, 1000.0), st.floats(60.0, 1e6), st.sampled_from([0.6, 0.8, 1.25, 1.6]))
def test_no_other_interval_loses_less(stall: float, between: float, other: float) -> None:
    """By the whole model (Daly, equation 20): the time that a second of work takes, interruptions during saves and work done again included."""
    assume(stall < between / 2)

    def time_taken(interval: float) -> float:
        return (between / interval) * math.expm1((interval + stall) / between)

    best = optimum(stall, between)
    assert time_taken(best) <= time_taken(best * other) * 1.003


def test_known_figures() -> None:
    # A save of 30 s and one interruption a day: sqrt(2 * 30 * 86400) is 2277 s.
    assert optimum(30, 86400) == pytest.approx(2277 - 30, rel=0.01)
    day = Basis(1 / 24, (Saved(30, 0),))
    assert choose(day).seconds == pytest.approx(2257, rel=0.01)
    assert choose(day._replace(expected=3600.0)) == (900.0, "4 in the expected 60 min")
    assert choose(day._replace(rate=10.0)).seconds == 300, "no more than a tenth"
    assert "a tenth" in choose(day._replace(rate=10.0)).why
    assert choose(day._replace(saved=(Saved(0.01, 0.1),))).seconds == SHORTEST
    assert choose(day._replace(saved=(Saved(2000, 0),), rate=1e-4)).seconds == LONGEST
    assert choose(day._replace(saved=(Saved(1, 900),), rate=10.0)).seconds == 901


def test_before_anything_was_measured() -> None:
    assert choose(Basis(1 / 24)).seconds == FIRST
    assert choose(Basis(1 / 24, expected=1200.0)).seconds == 300
    assert choose(Basis(1 / 24, expected=10.0)).seconds == SHORTEST


def test_one_slow_save_changes_nothing() -> None:
    saved: tuple[Saved, ...] = ()
    for stall in (1.0, 1.0, 1.0, 500.0):
        saved = remember(saved, Saved(stall, 0.0))
    assert choose(Basis(1 / 24, saved)) == choose(Basis(1 / 24, (Saved(1.0, 0.0),)))
    for _ in range(10):
        saved = remember(saved, Saved(7.0, 0.0))
    assert saved == (Saved(7.0, 0.0),) * REMEMBERED


def test_the_rate_of_a_job() -> None:
    assert rate_of(0.25, "aws/r/z/t/spot", 4) == 1.0
    assert rate_of(0.0, "aws/r/z/t/on-demand") == USUAL_RATES["on-demand"]
    assert rate_of(0.0, "") == USUAL_RATES["spot"], "nobody knows: rather too often"
    assert rate_of(0.0, "aws/r/z/t/spot", 0) == USUAL_RATES["spot"]


@given(st.floats(1e-6, 1e3))
def test_a_rate_is_rounded_by_a_factor_of_less_than_the_root_of_two(rate: float) -> None:
    assert 1 / math.sqrt(2) <= rounded(rate) / rate * (1 + 1e-9) <= math.sqrt(2) * (1 + 2e-9)
    assert rounded(rounded(rate)) == rounded(rate)


def test_nothing_known_rounds_to_nothing() -> None:
    assert rounded(0.0) == 0.0


def test_what_is_worth_a_word() -> None:
    assert [notable(600, new) for new in (600, 660, 500, 760, 470)] == [False, False, False, True, True]


def test_waste_adds_up() -> None:
    lost = waste(3600, Saved(36, 60), 1.0, 90)
    assert lost.saving == pytest.approx(0.01)
    assert lost.again == pytest.approx((1800 + 60) / 3600)
    assert lost.coming_back == pytest.approx(0.025)
    assert lost.total == pytest.approx(lost.saving + lost.again + lost.coming_back)
