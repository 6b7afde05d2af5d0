"""What all providers share: sorting of refusals, the shared pause, launch ids, tags."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.aws import journal as aws
from slurm_plugin.cloud.azure import journal as azure
from slurm_plugin.cloud.backoff import Backoff, Paused
from slurm_plugin.cloud.gcp import journal as gcp
from slurm_plugin.cloud.gcp.ended import Ended
from slurm_plugin.cloud.provider import RefusalKind, Refused
from slurm_plugin.cloud.refusals import LONGEST_TEXT, Codes

BASE = "6f9619ff-8b86-4d11-b42d-00c04fc90000"
CODES = Codes.of(no_capacity=["Empty"], quota=["Quota"], price=["Price"], try_later=["Rate"], mistake=["Bad"])


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("Empty", 500, RefusalKind.NO_CAPACITY),
        ("Quota", None, RefusalKind.QUOTA),
        ("Price", None, RefusalKind.PRICE),
        ("Rate", 400, RefusalKind.TRY_LATER),
        ("Bad", 503, RefusalKind.MISTAKE),
        ("Unheard", None, RefusalKind.MISTAKE),
        ("Unheard", 404, RefusalKind.MISTAKE),
        ("Unheard", 429, RefusalKind.TRY_LATER),
        ("Unheard", 503, RefusalKind.TRY_LATER),
    ],
)
def test_codes_are_sorted(code: str, status: int | None, kind: RefusalKind) -> None:
    refusal = CODES.refuse("id", code, "the cloud's\n own words", status)
    assert (refusal.kind, refusal.code, refusal.text) == (kind, code, "the cloud's own words")
    assert refusal.permanent == (kind is RefusalKind.MISTAKE)


def test_a_code_has_one_meaning() -> None:
    with pytest.raises(ValueError, match="X is both quota and price"):
        Codes.of(quota=["X"], price=["X"])


def test_long_words_are_cut_and_a_quota_may_be_permanent() -> None:
    refusal = CODES.refuse("id", "Quota", "x" * 5000, permanent=True)
    assert len(refusal.text) == LONGEST_TEXT
    assert refusal.permanent
    assert Refused("id", RefusalKind.MISTAKE, "c", "t").permanent
    codes = Codes.of(mistake=["NoRight"])
    assert codes.refuse("id", "NoRight", "t").known
    assert not codes.refuse("id", "NeverHeardOf", "t").known, "asked again after a while"


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Throttled(Exception):
    pass


def make(time: Time, **settings: float) -> Backoff:
    return Backoff(clock=time, sleep=time.sleep, jitter=lambda: 1.0, **settings)


def is_throttle(error: Exception) -> bool:
    return isinstance(error, Throttled)


def test_one_callers_refusal_makes_all_wait() -> None:
    time = Time()
    backoff = make(time, first=1.0)
    backoff.throttled()
    backoff.throttled()
    assert backoff.left() == 1.0, "refusals of calls that were under way do not lengthen the pause"
    assert backoff.call(lambda: time.now, is_throttle) == 1.0
    backoff.throttled(retry_after=7.0)
    with pytest.raises(Paused):
        backoff.call(lambda: pytest.fail("called during the pause"), is_throttle, patience=5.0)
    assert backoff.call(lambda: time.now, is_throttle, patience=10.0) == 8.0


def test_pauses_grow_end_at_the_longest_and_are_forgotten() -> None:
    time = Time()
    backoff = make(time, first=1.0, longest=8.0)
    lengths = []
    for _ in range(6):
        backoff.throttled()
        lengths.append(backoff.left())
        time.now += backoff.left()
    assert lengths == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    for _ in range(20):
        backoff.succeeded()
    backoff.throttled()
    assert backoff.left() == 1.0


def test_patience_ends_with_the_clouds_own_error() -> None:
    time = Time()
    tries = []

    def work() -> None:
        tries.append(time.now)
        raise Throttled

    with pytest.raises(Throttled):
        make(time, first=1.0).call(work, is_throttle, patience=5.0)
    assert tries == [0.0, 1.0, 3.0]


def test_other_errors_are_not_tried_again() -> None:
    backoff = make(Time())
    with pytest.raises(KeyError):
        backoff.call(lambda: {}["x"], is_throttle)
    assert backoff.left() == 0.0


def test_many_threads_keep_one_pause() -> None:
    """A cloud that lets through one call of two: all callers get their answer, and the refused calls stay few."""
    lock, calls = threading.Lock(), [0, 0]
    backoff = Backoff(first=0.01, longest=0.05)

    def work() -> int:
        with lock:
            calls[0] += 1
            if calls[0] <= 20:
                calls[1] += 1
                raise Throttled
            return 1

    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(backoff.call(work, is_throttle, patience=30.0)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [1] * 8


@given(st.integers(1, 50))
def test_launch_ids_of_a_batch_share_their_base(count: int) -> None:
    ids = launch_ids.batch(count)
    assert len(set(ids)) == count
    assert {launch_ids.base_of(i) for i in ids} == {ids[0]}
    assert [launch_ids.index_of(i) for i in ids] == list(range(count))
    assert [launch_ids.of(ids[0], i) for i in range(count)] == ids


def test_launch_ids_have_limits() -> None:
    with pytest.raises(ValueError, match="can't be one batch"):
        launch_ids.batch(0x10001)
    with pytest.raises(ValueError, match="badly formed"):
        launch_ids.base_of("../../etc")
    assert launch_ids.chunks(range(5), 2) == [[0, 1], [2, 3], [4]]


def test_tags_say_whose_machine_it_is() -> None:
    mine = tags.Ownership("c", "spot-1", "spot", "id", "aws/r/z/t/spot")
    assert tags.read(mine.tags(), "c") == mine
    assert tags.read(mine.tags(), "other") is None
    assert tags.read({}, "c") is None
    assert tags.read({tags.CLUSTER: "c"}, "c") == tags.Ownership("c", "", "", "", "")


def test_a_wish_for_a_pause_is_heeded_within_reason() -> None:
    now = [0.0]
    backoff = Backoff(clock=lambda: now[0], sleep=lambda _: None)
    backoff.throttled(17.0)
    assert backoff.left() == 17.0
    backoff.throttled(float("9" * 400))
    assert backoff.left() == 600.0


WRONG = ["", "[" * 20_000, "[]", "5", "null", '{"1":5}', json.dumps({BASE: 5}), json.dumps([{BASE: 5}])]


@pytest.mark.parametrize("text", WRONG)
def test_notes_of_launches_that_are_none_are_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{BASE}.json").write_text(text)
    assert aws.Journal(tmp_path).notes() == []
    assert gcp.Journal(tmp_path).calls() == []
    assert azure.Journal(tmp_path).recent(0.0) == []
    assert 5 not in Ended(tmp_path / f"{BASE}.json", lambda: 0.0)


@pytest.mark.parametrize("wrong", [None, 5, "x", [], {}, float("nan"), {"a": 5}])
def test_notes_with_a_field_that_is_wrong_are_passed_over_or_of_use(tmp_path: Path, wrong: Any) -> None:
    def noted(folder: Path, note: Any, field: str) -> Path:
        path = folder / f"{BASE}.json"
        path.parent.mkdir(exist_ok=True)
        data = {**asdict(note), field: wrong}
        path.write_text(json.dumps([data] if isinstance(note, azure.Note) else data))
        return folder

    fleet = aws.Fleet("t", [BASE], {}, 5.0)
    for field in ("base", "fleets", "nodes", "instances", "refused"):
        found = aws.Journal(noted(tmp_path / "aws", aws.Note(BASE, [fleet], {BASE: "n"}), field))
        found.by_instance()
        for note in found.notes():
            note.assign(fleet, ["i-1"])
        found.forget(9.0)
    call = gcp.Call(BASE, {BASE: "n"}, "s", "o", "z", "t", "spot", False, False, 5.0)
    for field in ("request_id", "members", "asked", "made", "refused", "zone"):
        journal = gcp.Journal(noted(tmp_path / "gcp", call, field))
        assert all(journal.of(launch_id) for each in journal.calls() for launch_id in each.members)
        journal.forget(9.0)
    for field in ("launch_id", "asked", "node", "code", "made", "status"):
        book = azure.Journal(noted(tmp_path / "azure", azure.Note(BASE, "n", 5.0, True), field))
        assert all(note.settled is True for note in book.recent(0.0))
        book.forget(9.0)
