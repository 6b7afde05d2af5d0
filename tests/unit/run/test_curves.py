"""What a program tells of its training: thinned without being bent, kept with the commits, whatever the program says."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import job_wrapper
from job_wrapper.curves import BODY, NAMES, POINTS, Curves, Gathered, Point, read
from job_wrapper.errors import UsageError
from job_wrapper.store.io_types import Kind
from tests.unit.run.programs import trained

if TYPE_CHECKING:
    from conftest import Room


def curves(values: list[float], name: str = "loss") -> Curves:
    made = Curves(clock=lambda: 100.0)
    for step, value in enumerate(values, start=1):
        made.hear({"type": "metrics", "step": step, "values": {name: value}})
    return made


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_a_thinned_curve_is_short_and_loses_no_value(values: list[float]) -> None:
    points = read(curves(values).told())["loss"]
    assert len(points) <= POINTS
    assert [p.step for p in points] == sorted({p.step for p in points})
    assert points[-1].step == len(values)
    begins = [0, *(p.step for p in points[:-1])]
    for begin, point in zip(begins, points, strict=True):
        mean = sum(values[begin : point.step]) / (point.step - begin)
        assert point.value == pytest.approx(mean, rel=1e-5, abs=1e-5)


@given(st.lists(st.integers(0, 400), max_size=6), st.integers(1, 400))
def test_what_is_in_the_log_is_not_told_again_and_what_came_after_is(cuts: list[int], steps: int) -> None:
    made, told = Curves(clock=lambda: 1.0), []
    for step in range(1, steps + 1):
        made.hear({"step": step, "values": {"loss": step}})
        if step in cuts:
            entry = made.told()
            made.written(entry)
            told += read(entry)["loss"]
    told += read(made.told()).get("loss", [])
    assert [p.step for p in told] == sorted({p.step for p in told})
    assert told[-1].step == steps
    made.written(made.told())
    assert made.told() == {}


def test_a_loss_that_is_no_number_is_a_gap_and_its_neighbours_stand() -> None:
    assert [p.value for p in read(curves([1.0, math.nan, 3.0, math.inf, 5.0]).told())["loss"]] == [1, None, 3, None, 5]
    json.dumps(curves([math.nan]).told(), allow_nan=False)


def test_of_too_many_names_the_first_are_kept_and_a_step_that_goes_back_is_passed_over() -> None:
    made = Curves()
    made.hear({"step": 5, "values": {f"name{i}": i for i in range(100)}})
    made.hear({"step": 4, "values": {"name0": 9.0}})
    found = read(made.told())
    assert sorted(found) == [f"name{i}" for i in range(NAMES)]
    assert [p.value for p in found["name0"]] == [0]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["step", "values", "x"]), anything | st.just({"loss": 10**400})))
def test_no_message_harms(message: dict[str, Any]) -> None:
    made = curves([1.0])
    made.hear(message)
    json.dumps(made.told(), allow_nan=False)
    assert read(made.told())["loss"]


@given(anything)
def test_no_log_entry_harms(body: Any) -> None:
    for points in read({BODY: {"loss": body}}).values():
        assert all(isinstance(p, Point) for p in points)
    read({BODY: body})


def test_values_of_a_second_go_out_together() -> None:
    now = [0.0]
    gathered = Gathered(clock=lambda: now[0])
    assert gathered.add(1, {"loss": 4}) == {"type": "metrics", "step": 1, "values": {"loss": 4.0}}
    assert gathered.add(2, {"loss": 2}) is None
    now[0] = 1.0
    assert gathered.add(3, {"loss": 4, "rate": math.nan}) == {
        "type": "metrics",
        "step": 3,
        "values": {"loss": 3.0, "rate": None},
    }
    assert gathered.due() is None


def test_without_a_wrapper_nothing_happens_and_nonsense_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPOTBURST_SOCKET", raising=False)
    job_wrapper.log(1, loss="not looked at")
    monkeypatch.setenv("SPOTBURST_SOCKET", str(tmp_path / "gone"))
    job_wrapper.log(1, loss=1.0)
    for step, value in ((1, "high"), (1, 10**400), (math.inf, 1.0)):
        with pytest.raises(UsageError, match="give a whole number and numbers"):
            job_wrapper.log(step, loss=value)  # type: ignore[arg-type]


def test_the_curve_goes_on_across_attempts(room: Room) -> None:
    began = time.time()
    stopped = trained(room, 30)
    entries = room.log()
    points: dict[int, list[Point]] = {1: [], 2: []}
    for entry in entries:
        points[entry.epoch] += read(entry.body).get("loss", [])
    steps = [p.step for p in points[1]]
    assert steps == sorted(set(steps))
    assert any(BODY in e.body for e in entries if e.kind is Kind.COMMIT)
    assert steps[-1] <= stopped < points[2][0].step <= points[2][-1].step == stopped + 30
    for point in points[1] + points[2]:
        assert began < point.time < time.time() + 0.1
        assert point.value is not None and 0 < point.value <= 1.0
    assert [e for e in entries if read(e.body).get("rate")][-1].epoch == 2
