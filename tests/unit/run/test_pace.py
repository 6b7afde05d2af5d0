"""The interval in force while an attempt goes on: what is measured, and what the machine makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from job_wrapper.interval import FIRST, SHORTEST, SURE, Saved, optimum
from job_wrapper.run import events as ev
from job_wrapper.run.pace import Pace, measure
from tests.unit.run.drive import PARTS, Drive

if TYPE_CHECKING:
    from conftest import Room

DAY = 1 / 24


def save(**changes: object) -> ev.Save:
    return ev.Save(1, 5, PARTS, "interval", False, asked=100.0, answered=112.0)._replace(**changes)


@pytest.mark.parametrize(
    ("done", "seconds", "expected"),
    [
        (save(stall=2.0), 1.0, Saved(2.0, 11.0)),
        (save(), 1.0, Saved(13.0, 0.0)),
        (save(stall=20.0), 1.0, Saved(20.0, 1.0)),
        (save(asked=None, parts={}), 4.0, Saved(4.0, 0.0)),
        (save(urgent=True), 1.0, None),
        (save(asked=None), 1.0, None),
    ],
    ids=["staged", "stood still", "told too long", "files without the program", "urgent", "the program's own"],
)
def test_what_a_save_cost(done: ev.Save, seconds: float, expected: Saved | None) -> None:
    assert measure(done, seconds) == expected


def test_a_fixed_interval_stays() -> None:
    pace = Pace(120.0, DAY)
    pace.ready(0.0, 600.0, 10.0)
    assert pace.saved(save(stall=30.0), 60.0) is None
    assert pace.told() == {"seconds": 120.0, "why": "as asked for", "auto": False}


def test_a_way_back_is_counted_from_the_attempts_start_to_the_programs_word() -> None:
    quick, slow = Pace(0.0, 1.0), Pace(0.0, 1.0)
    for pace, loaded in ((quick, 20.0), (slow, 1500.0)):
        pace.ready(0.0, None, 10.0)
        pace.going(True, None, None, loaded)
        pace.saved(save(stall=5.0), 0.1)
    assert slow.seconds < quick.seconds
    assert quick.seconds == pytest.approx(optimum(5.0, 3580.0))
    late = Pace(0.0, 1.0)
    late.ready(0.0, None, 10.0)
    late.going(False, 1, 10, 1500.0)
    late.saved(save(stall=5.0), 0.1)
    assert late.seconds == pytest.approx(optimum(5.0, 3590.0)), "progress that is told late is no restore"


def test_four_in_the_run_by_the_programs_own_counters() -> None:
    pace = Pace(0.0, DAY)
    pace.ready(0.0, 48 * 3600.0, 0.0)
    for _ in range(SURE):
        pace.saved(save(stall=20.0), 0.0)
    by_rate = pace.seconds
    assert by_rate == pytest.approx(optimum(20.0, 86400.0))
    pace.going(False, 0, 1000, 0.0)
    pace.going(False, 1, 1000, 2.0)
    assert pace.seconds == by_rate, "too early to tell"
    pace.going(False, 50, 1000, 100.0)
    assert pace.seconds == pytest.approx(500.0)
    pace.going(False, 100, 100_000, 200.0)
    assert pace.seconds == by_rate


def test_one_slow_first_save_keeps_no_checkpoint_away() -> None:
    """It is no worse than one that was quick, and two of three decide."""
    pace = Pace(0.0, DAY)
    pace.ready(0.0, None, 0.0)
    pace.saved(save(stall=600.0), 0.0)
    assert (pace.seconds, pace.now.why[:25]) == (FIRST, "no longer before 3 saves ")
    pace.saved(save(stall=2.0), 0.0)
    assert pace.seconds == FIRST
    pace.saved(save(stall=2.0), 0.0)
    assert pace.seconds == pytest.approx(optimum(2.0, 86400.0))
    slow = Pace(0.0, DAY)
    for _ in range(SURE):
        slow.saved(save(stall=600.0), 0.0)
    assert slow.seconds > FIRST, "three of them are believed"


def test_the_machine_asks_at_the_interval_that_it_has_measured() -> None:
    d = Drive(interval=0.0, rate=DAY)
    d(ev.Subscribed(1))
    [ask] = [a for a in d.wait(1000 + FIRST) if isinstance(a, ev.Ask)]
    d(ev.Staged(1, ask.seq, 2.0), d.now + 3)
    d(ev.CommitAsked(1, ask.seq, 7, PARTS), d.now + 20)
    d(ev.Committed(4, 1.0), d.now + 1)
    assert not d.took(ev.Say), "a change of a fifth is not worth a word"
    expected = optimum(2.0, 86400.0)
    assert expected < FIRST
    committed = d.now
    assert not [a for a in d.wait(committed + expected - 1) if isinstance(a, ev.Ask)]
    assert [a for a in d.wait(committed + expected + 1) if isinstance(a, ev.Ask)]


def test_a_run_that_turns_out_to_be_short_is_saved_before_the_usual_first_time() -> None:
    d = Drive(interval=0.0, rate=DAY)
    d(ev.Subscribed(1))
    d(ev.Going(False, 0, 100))
    d(ev.Going(False, 20, 100), 1080.0)  # 400 s in all
    assert [a for a in d.wait(1080.0 + 101) if isinstance(a, ev.Ask)]


def test_a_change_is_said() -> None:
    d = Drive(interval=0.0, rate=DAY, state_dirs=True)
    d.wait(1000 + FIRST)
    d(ev.Committed(4, 0.001))
    [said] = [a.text for a in d.did if isinstance(a, ev.Say)]
    assert said == (
        f"checkpoints every {SHORTEST:.0f} s from now on: never shorter "
        "(an interruption about every 24.0 h, a save stops the program 0.0 s)"
    )


def test_the_interval_stands_in_the_log_with_its_reason(room: Room) -> None:
    room.node["interruption_rate"] = 0.5
    state = room.path / "state"
    state.mkdir()
    code, _, err = room.run(["sh", "-c", "echo 1 > state/f"], "--state-dir", str(state))
    assert code == 0, err
    assert room.commits()[0].body["interval"] == {"seconds": FIRST, "why": "no save measured yet", "auto": True}
    code, _, err = room.run(["true"], "--state-dir", str(state), "--interval", "7h", "--name", "long")
    assert code == 2
    assert "longer than 6 h: write auto, or from 1m to 6h" in err
