"""The decision about an ended job: each line of the table, and what holds for any job and any log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.errors import ExitCode, SpotburstError
from job_wrapper.reasons import WORDS
from job_wrapper.store.io_types import Entry, Kind, Summary, Writer
from slurm_plugin.requeue import (
    ENDED_STATES,
    LOST_STATES,
    MAX_NEVER_STARTED,
    Continue,
    Fail,
    Hold,
    Limits,
    Requeue,
    RunTail,
    decide,
    may_need_help,
    never_started_counter,
)
from slurm_plugin.slurm.records import Job


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "states": frozenset({"FAILED"}), "exit_code": 137, "start_time": 1000, "end_time": 2000, "restart_count": 1,
    }  # fmt: skip
    return replace(Job(12, "12", frozenset(), "", "spot", "u", 1), **{**values, **changes})


def tail(kind: Kind = Kind.COMMIT, **changes: Any) -> RunTail:
    return replace(RunTail("c/12/main", kind, "12", 1, 1, 0, True), **changes)


@pytest.mark.parametrize(
    ("changes", "tails", "expected"),
    [
        ({}, [], Continue),
        ({}, [tail()], Requeue),
        ({}, [tail(Kind.CLAIM, committed=False)], Requeue),
        ({}, [tail(Kind.RESTORE_FAILED)], Requeue),
        ({}, [tail(Kind.INTERRUPTED)], Requeue),
        ({"exit_code": 89}, [tail(Kind.INTERRUPTED)], Requeue),
        ({}, [tail(Kind.SUSPENDED)], Hold),
        ({}, [tail(Kind.END)], Continue),
        ({}, [tail(Kind.END, run="c/12/one"), tail(run="c/12/two")], Requeue),
        ({}, [tail(Kind.END, exit_code=84, reason="NoProgress")], Fail),
        ({"exit_code": 81}, [tail()], Fail),
        ({"exit_code": 80}, [tail()], Fail),
        ({"exit_code": 82}, [tail(Kind.END)], Continue),
        ({"exit_code": 3}, [tail(Kind.END), tail(Kind.END, exit_code=3, reason="ProgramFailed")], Fail),
        ({"states": frozenset({"COMPLETED"}), "exit_code": 0}, [tail()], Requeue),
        ({"states": frozenset({"COMPLETED"}), "exit_code": 0}, [tail(Kind.END)], Continue),
        ({"states": frozenset({"NODE_FAIL"})}, [tail()], Requeue),
        ({"states": frozenset({"CANCELLED"})}, [tail()], Continue),
        ({"states": frozenset({"TIMEOUT"})}, [tail()], Continue),
        ({"states": frozenset({"OUT_OF_MEMORY"})}, [tail()], Fail),
        ({"states": frozenset({"OUT_OF_MEMORY"})}, [], Continue),
        ({"states": frozenset({"RUNNING"})}, [tail()], Continue),
        ({"exit_code": 1, "preempt_time": 970, "end_time": 1001}, [], Requeue),
        ({"exit_code": 1, "preempt_time": 970, "end_time": 1001}, [tail(restart_count=0)], Requeue),
        (
            {"exit_code": 1, "preempt_time": 970, "end_time": 1001},
            [tail(Kind.END, exit_code=1, reason="ProgramFailed")],
            Fail,
        ),
        ({"exit_code": 1, "preempt_time": 970, "end_time": 1031}, [], Continue),
        ({"exit_code": 1, "preempt_time": 970, "end_time": 1001, "restart_count": 0}, [], Continue),
        ({"exit_code": 1, "preempt_time": 1000, "end_time": 1001}, [], Continue),
        # Ended as it started by a signal that was meant for another attempt.
        ({"exit_code": 143, "end_time": 1001}, [], Requeue),
        ({"exit_code": 0, "exit_signal": 10, "end_time": 1001}, [], Requeue),
        ({"exit_code": 143, "end_time": 1001}, [tail(Kind.END, restart_count=0)], Requeue),
        ({"exit_code": 143, "end_time": 1001}, [tail(Kind.END, exit_code=143, reason="ProgramFailed")], Fail),
        ({"exit_code": 143, "end_time": 1001, "restart_count": 0}, [], Continue),
        ({"exit_code": 143, "end_time": 1031}, [], Continue),
        ({"exit_code": 143, "end_time": 1001, "requeue": False}, [], Continue),
        ({"exit_code": 137, "end_time": 1001}, [], Continue),
        ({"exit_code": 1, "end_time": 1001}, [], Continue),
        ({"states": frozenset({"COMPLETED"}), "exit_code": 143, "end_time": 1001}, [], Continue),
        ({"states": frozenset({"FAILED", "COMPLETING"})}, [tail()], Continue),
        ({"states": frozenset({"PENDING"})}, [tail(Kind.INTERRUPTED)], Continue),
        ({"requeue": False}, [tail()], Fail),
        ({"batch": False}, [tail()], Fail),
        ({"batch": False}, [tail(Kind.END)], Continue),
        ({"requeue": False}, [tail(restart_count=2)], Continue),
        ({}, [tail(fails=True)], Fail),
        ({}, [tail(Kind.SUSPENDED, fails=True)], Hold),
        ({}, [tail(restart_count=2)], Continue),
        ({}, [tail(job_id="13")], Continue),
        ({"name_id": "7_3"}, [tail(job_id="7_3")], Requeue),
        # R1: refused at its start, its credential revoked
        ({"exit_code": 1, "end_time": 1001}, [tail(restart_count=0)], Requeue),
        ({"exit_code": 1, "end_time": 1001}, [tail(Kind.INTERRUPTED, restart_count=0)], Requeue),
        ({"exit_code": 1, "end_time": 1001}, [tail(Kind.SUSPENDED, restart_count=0)], Requeue),
        ({"exit_code": 1, "end_time": 1001}, [tail(Kind.END, restart_count=0)], Continue),
        ({"exit_code": 1, "end_time": 1100}, [tail(restart_count=0)], Continue),
        ({"exit_code": 1, "end_time": 1001, "restart_count": 0}, [tail(restart_count=0, job_id="13")], Continue),
        ({"states": frozenset({"COMPLETED"}), "exit_code": 0, "end_time": 1001}, [tail(restart_count=0)], Continue),
    ],
)
def test_the_table(changes: dict[str, Any], tails: list[RunTail], expected: type[Any]) -> None:
    assert type(decide(job(**changes), tails, Limits())) is expected


def test_bounds_are_those_of_the_next_claim() -> None:
    assert isinstance(decide(job(), [tail(recoveries=7)], Limits()), Requeue)
    fail = decide(job(), [tail(recoveries=8)], Limits())
    assert isinstance(fail, Fail)
    assert fail.reason == "MaxAttempts"
    assert isinstance(decide(job(node_count=2), [tail(recoveries=3)], Limits()), Fail)
    barren = decide(job(), [tail(Kind.CLAIM, committed=False, barren=1)], Limits())
    assert isinstance(barren, Fail)
    assert barren.reason == "NoProgress"
    assert isinstance(decide(job(), [tail(Kind.CLAIM, committed=False, barren=0)], Limits()), Requeue)
    assert isinstance(decide(job(), [tail(barren=1)], Limits()), Requeue), "it made progress"


@pytest.mark.parametrize(
    ("changes", "newest", "reason", "words"),
    [
        (
            {},
            tail(Kind.END, exit_code=84, reason="NoProgress"),
            "NoProgress",
            "without a new checkpoint (exit code 84)",
        ),
        ({}, tail(Kind.END, exit_code=7, reason="ProgramFailed"), "ProgramFailed", "not tried again (exit code 7)"),
        ({}, tail(Kind.END, exit_code=137, reason="OutOfMemory"), "OutOfMemory", "ask for more (--mem)"),
        (
            {},
            tail(Kind.END, exit_code=91, reason="Preempted"),
            "Preempted",
            "its capacity was taken away (exit code 91)",
        ),
        ({}, tail(Kind.END, exit_code=5, reason="of a later version"), "of a later version", "gave the run up"),
        ({"states": frozenset({"OUT_OF_MEMORY"})}, tail(), "OutOfMemory", "Slurm ended it for want of memory"),
        ({"exit_code": 82}, tail(), "RunHeld", "another live job"),
        ({"states": frozenset({"NODE_FAIL"}), "requeue": False}, tail(), "NodeLost", "Slurm may not requeue it"),
        ({"states": frozenset({"NODE_FAIL"})}, tail(fails=True), "NodeLost", "--on-interruption fail was given"),
        ({"states": frozenset({"PREEMPTED"}), "requeue": False}, tail(), "Preempted", "Slurm may not requeue it"),
        ({"requeue": False}, tail(Kind.INTERRUPTED), "Preempted", "its capacity was taken away"),
        (
            {},
            tail(fails=True),
            "WrapperLost",
            "the wrapper of c/12/main was killed, and --on-interruption fail was given",
        ),
    ],
)
def test_what_is_not_brought_back_says_why(changes: dict[str, Any], newest: RunTail, reason: str, words: str) -> None:
    found = decide(job(**changes), [newest], Limits())
    assert isinstance(found, Fail)
    assert found.reason == reason
    assert words in found.text


def test_every_reason_that_ends_a_run_has_words_and_a_place_in_the_documents() -> None:
    codes, failures = (Path(__file__).parents[3] / "docs" / name for name in ("exit-codes.md", "failures.md"))
    for kind in _errors(SpotburstError):
        if int(kind.exit_code) >= ExitCode.FENCED:
            assert f"| {int(kind.exit_code)} |" in codes.read_text(), kind
            assert f"`{kind.reason}`" in failures.read_text(), kind
            assert kind.reason in (*WORDS, "Error", "StoreAway", "ObjectMissing"), kind
    for reason in WORDS:
        assert f"`{reason}`" in failures.read_text(), reason


def _errors(kind: type[SpotburstError]) -> list[type[SpotburstError]]:
    return [
        found
        for sub in kind.__subclasses__()
        if sub.__module__ == "job_wrapper.errors"
        for found in [sub, *_errors(sub)]
    ]


def test_never_started_is_counted_anew_after_each_claim() -> None:
    refused = job(restart_count=5)
    names = {never_started_counter(refused, [tail(restart_count=n)]) for n in (0, 3)}
    assert len(names) == 2
    assert never_started_counter(refused, [tail(restart_count=3), tail(restart_count=0)]) in names


def test_never_started_is_bounded() -> None:
    refused = job(exit_code=1, end_time=1001)
    assert isinstance(decide(refused, [tail(restart_count=0)], Limits(), never_started=MAX_NEVER_STARTED - 1), Requeue)
    assert isinstance(decide(refused, [tail(restart_count=0)], Limits(), never_started=MAX_NEVER_STARTED), Fail)


@given(
    st.frozensets(st.sampled_from([*ENDED_STATES, "PENDING", "RUNNING", "COMPLETING"]), min_size=1),
    st.integers(0, 255),
    st.integers(0, 3),
    st.lists(st.builds(RunTail, st.just("c/12/main"), st.sampled_from(list(Kind)), st.sampled_from(["12", "13"]), st.integers(0, 3), st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=3),
    st.integers(0, 5),
)  # fmt: skip
def test_a_job_is_only_brought_back_with_cause(
    states: frozenset[str], exit_code: int, restarts: int, tails: list[RunTail], never: int
) -> None:
    j = job(states=states, exit_code=exit_code, restart_count=restarts)
    found = decide(j, tails, Limits(), never_started=never)
    if isinstance(found, Requeue | Hold | Fail):
        assert may_need_help(j)
        assert not states.isdisjoint({*LOST_STATES, "OUT_OF_MEMORY"})
        assert tails, "ours"
    if isinstance(found, Requeue | Hold):
        assert not states.isdisjoint(LOST_STATES) and not states & {"OUT_OF_MEMORY"}
        assert any(t.job_id == "12" and t.kind is not Kind.END for t in tails)


def test_a_tail_tells_how_the_run_ended_and_whether_it_is_to_be_brought_back(tmp_path: Path) -> None:
    from job_wrapper.store import RunLog, open_store

    log = RunLog(open_store(f"file://{tmp_path}", prove=False), "c/12/main")
    claim = log.claim(Writer("c", "12", 1, 0, "h", "nonce"), body={"on_interruption": "fail"})
    assert RunTail.of("c/12/main", claim.entry).fails
    end = RunTail.of("c/12/main", claim.end(91, "Preempted"))
    assert (end.exit_code, end.reason) == (91, "Preempted")


def test_a_tail_is_read_from_a_real_log(tmp_path: Path) -> None:
    from job_wrapper.store import ObjectRef, RunLog, open_store

    log = RunLog(open_store(f"file://{tmp_path}", prove=False), "c/12/main")
    claim = log.claim(Writer("c", "12", 1, 0, "h", "nonce"))
    newest = log.tail()
    assert newest is not None
    assert RunTail.of("c/12/main", newest) == RunTail("c/12/main", Kind.CLAIM, "12", 1, 0, 0, False)
    claim.commit(ObjectRef(f"{claim.data_prefix}/manifest.json", 1, "xxh3-128:" + "0" * 32), step=5)
    claim.interrupted("aws reclaim")
    newest = log.tail()
    assert newest is not None
    assert RunTail.of("c/12/main", newest) == RunTail("c/12/main", Kind.INTERRUPTED, "12", 1, 0, 0, True, "aws reclaim")


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ({"completed": 36, "total": 40}, 0.1),
        ({"completed": 50, "total": 40}, 0.0),
        ({"completed": 5, "total": None}, None),
        ({"completed": 0, "total": 0}, None),
        ("most of it", None),
        (None, None),
    ],
)
def test_how_much_is_left_by_the_programs_counters(told: object, left: float | None) -> None:
    writer = Writer("c", "12", 0, 0, "n", "x")
    entry = Entry(1, Kind.COMMIT, 1, writer, 0.0, Summary(epoch=1), {"progress": told})
    assert RunTail.of("c/12/main", entry).left == (None if left is None else pytest.approx(left))
