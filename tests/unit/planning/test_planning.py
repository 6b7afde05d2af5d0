"""What a run on spot costs: the published example to the cent, and what holds for any run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.interval import Interval, Saved
from slurm_plugin.planning import Work, auto, fallback, line, without

EXAMPLE = Work(hours=10.0, hourly=8 * 2.60, rate=1 / 24)

WORKS = st.builds(
    Work,
    st.floats(0.1, 1000.0),
    st.floats(0.01, 500.0),
    st.floats(1e-6, 2.0),
    st.none() | st.builds(Saved, st.floats(0.0, 600.0), st.floats(0.0, 600.0)),
    st.floats(0.0, 3600.0),
)
INTERVALS = st.floats(60.0, 21600.0).map(lambda seconds: Interval(seconds, ""))


def cents(amount: float | None) -> float:
    assert amount is not None
    return round(amount, 2)


def test_the_published_example() -> None:
    """10 h on 8 GPUs at 2.60 an hour each, reclaimed at 7.5 h."""
    none, hourly = without(EXAMPLE, 7.5), line(EXAMPLE, 7.5, Interval(3600.0, ""))
    assert (cents(none.lost), cents(none.total)) == (156.00, 364.00)
    assert (cents(hourly.lost), cents(hourly.total)) == (10.40, 218.40)
    assert cents(line(EXAMPLE, 7.5, Interval(1800.0, "")).most) == 10.40
    assert cents(line(EXAMPLE, 7.5, Interval(900.0, "")).most) == 5.20


@given(WORKS, st.floats(0.0, 1.0), INTERVALS)
def test_a_reclaim_never_costs_more_than_its_most_and_checkpoints_never_lose_more_than_none(
    work: Work, share: float, interval: Interval
) -> None:
    at = share * work.hours
    none, found = without(work, at), line(work, at, interval)
    back = work.restore / 3600 * work.hourly
    assert back * (1 - 1e-9) <= found.lost <= found.most * (1 + 1e-6)
    assert found.lost <= none.lost * (1 + 1e-9)
    assert found.total == pytest.approx(work.undisturbed + found.saving + found.lost)
    assert none.expected is None or none.expected >= work.undisturbed * (1 - 1e-9)
    assert found.expected is not None and found.expected >= work.undisturbed


@given(WORKS, st.floats(60.0, 10_000.0))
def test_half_the_interval_halves_the_worst(work: Work, seconds: float) -> None:
    whole, half = (line(work, 0.0, Interval(s, "")) for s in (seconds, seconds / 2))
    assert half.most <= whole.most
    assert half.saving >= whole.saving


def test_save_and_way_back_are_paid() -> None:
    work = Work(10.0, 36.0, 0.1, Saved(10.0, 20.0), 100.0)
    found = line(work, 7.5, Interval(3600.0, ""))
    assert found.saving == pytest.approx(9 * 10 * 0.01), "nine saves before the end, ten seconds each, a cent a second"
    assert found.lost == pytest.approx(1800 * 0.01 + 100 * 0.01)
    assert line(work, 7.005, Interval(3600.0, "")).lost == pytest.approx((3600 + 18) * 0.01 + 1.0), (
        "18 s after a save it is not committed yet"
    )


def test_without_checkpoints_a_long_run_never_ends() -> None:
    assert without(Work(1000.0, 1.0, 1.0), 10.0).expected is None
    assert without(Work(1.0, 1.0, 1.0), 0.5).expected == pytest.approx(1.71828, rel=1e-4)


def test_auto_is_the_wrappers_own_choice() -> None:
    assert auto(Work(100.0, 1.0, 1 / 24, Saved(30.0, 0.0))).seconds == pytest.approx(2254, abs=5)
    assert auto(Work(1.0, 1.0, 1 / 24, Saved(30.0, 0.0))).why == "4 in the expected 60 min"


def test_when_to_fall_back() -> None:
    work, hourly = Work(10.0, 10.0, 1 / 24, Saved(0.0, 0.0)), Interval(3600.0, "")
    # 100 on spot, 120 on-demand; half an hour lost at a time costs 5.
    assert fallback(work, hourly, 12.0).failures == 4
    assert fallback(work, hourly, 12.0).rule == "on_demand_after: {failures: 4}"
    assert fallback(work, hourly, 10.1).failures == 0, "two hundredths of the run are lost on average"
    assert fallback(work, hourly, 10.1).rule == "interruptible: never"
    many = fallback(work, hourly, 30.0, recoveries=3)
    assert (many.failures, many.usual) == (3, 300.0)
    assert "by price it would be 40" in many.why
