"""The wrapper's decisions on ordinary checkpoints."""

from __future__ import annotations

from job_wrapper.run import events as ev
from job_wrapper.run.desk import QUIET_WAIT
from job_wrapper.run.rules import Phase
from tests.unit.run.drive import PARTS, Drive, kinds


def test_interval_asks_the_program() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    (ask,) = d.wait(1600)
    assert (ask.urgent, ask.reason) == (False, "interval")
    assert d.wait(2300) == []  # it stands: asked once
    d(ev.CommitAsked(1, ask.seq, 7, PARTS))
    d(ev.Committed(3, 1.0))
    assert d.took(ev.Answer)[0].message == {"type": "checkpoint.committed", "seq": ask.seq, "entry": 3, "stop": False}


def test_interval_saves_files_of_a_program_that_never_subscribed() -> None:
    d = Drive(state_dirs=True)
    (save,) = d.wait(1600)
    assert (save.parts, save.urgent, save.clients) == ({}, False, ())
    d(ev.Committed(2, 1.0))
    assert kinds(d.wait(2200)) == ["Save"]


def test_program_that_nothing_is_saved_of_is_told_after_some_minutes_whatever_the_interval() -> None:
    d = Drive(interval=86400.0)
    assert d.wait(1000 + QUIET_WAIT - 1) == []
    assert "nothing to save" in d.wait(1000 + QUIET_WAIT)[0].text
    assert d.wait(1000 + 3 * QUIET_WAIT) == []
    for more in ({"state_dirs": True}, {"commits": False}):
        assert Drive(interval=86400.0, **more).wait(1000 + 2 * QUIET_WAIT) == []


def test_nothing_to_save_is_said_once() -> None:
    d = Drive()
    d.wait(5000)
    assert len(d.took(ev.Say)) == 1
    assert kinds(d.did) == []


def test_files_are_saved_once_all_who_subscribed_have_acknowledged() -> None:
    d = Drive(state_dirs=True)
    d(ev.Subscribed(1))
    d(ev.Subscribed(2))
    (ask,) = d.wait(1600)
    assert d(ev.Acked(1, ask.seq)) == []
    (save,) = d(ev.Acked(2, ask.seq))
    assert save.clients == (1, 2)
    d(ev.Committed(3, 1.0))
    assert [a.client for a in d.took(ev.Answer)] == [1, 2]


def test_who_leaves_is_not_waited_for() -> None:
    d = Drive(state_dirs=True)
    d(ev.Subscribed(1))
    d(ev.Subscribed(2))
    (ask,) = d.wait(1600)
    d(ev.Acked(1, ask.seq))
    assert kinds(d(ev.Left(2))) == ["Save"]


def test_acknowledgement_without_state_directory_is_told_so() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    (ask,) = d.wait(1600)
    (answer,) = d(ev.Acked(1, ask.seq))
    assert answer.message["type"] == "checkpoint.failed"


def test_who_subscribes_late_hears_the_standing_request() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    (ask,) = d.wait(1600)
    (again,) = d(ev.Subscribed(2))
    assert (again.seq, again.client) == (ask.seq, 2)


def test_commit_is_tried_again_and_then_given_up_without_ending_anything() -> None:
    d = Drive()
    d(ev.Subscribed(1))
    d(ev.CommitAsked(1, None, 5, PARTS))
    saves = 1
    for _ in range(10):
        d(ev.CommitFailed("store away", again=True))
        saves += len([a for a in d.wait(d.now + 1.0) if isinstance(a, ev.Save)])
    assert saves == 5
    assert d.took(ev.Answer)[0].message["type"] == "checkpoint.failed"
    assert d.machine.phase is Phase.RUNNING


def test_only_rank_zero_commits() -> None:
    d = Drive(commits=False, state_dirs=True)
    d(ev.Subscribed(1))
    (answer,) = d(ev.CommitAsked(1, None, 5, PARTS))
    assert answer.message["type"] == "checkpoint.failed"
    assert kinds(d.wait(10000)) == []
