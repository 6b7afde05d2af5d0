"""However often a run is stopped, it ends as one that never was."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from job_wrapper.checkpoint import DirectCommitter, overlap
from job_wrapper.checkpoint.copying import move
from job_wrapper.errors import ExitCode, RestoreFailed
from job_wrapper.store import verify_checkpoint
from tests.unit.checkpoint.training import KINDS, Attempt, assert_same, open_run, train

BATCHES = 6  # an epoch of `train`
STEPS = 3 * BATCHES
numbers = itertools.count()


class Crash(Exception):
    """The program dies without a save."""


def disturb(folder: Path, stops: list[int], saves: set[int], crashes: list[int], kind: str = "sampler") -> Attempt:
    """Attempt after attempt until one finishes. Each stop and each crash happens once."""
    stops, crashes = sorted(stops), sorted(crashes)

    def before_step(step: int, committer: DirectCommitter | None) -> None:
        assert committer is not None
        if step in saves:
            committer.ask()
        if stops and step == stops[0]:
            stops.pop(0)
            committer.ask(urgent=True, stop=True)
        elif crashes and step == crashes[0]:
            crashes.pop(0)
            raise Crash

    for _ in range(len(stops) + len(crashes) + 1):
        try:
            attempt = train(open_run(folder), before_step=before_step, kind=KINDS[kind])
        except Crash:
            continue
        if attempt.exit_code is None:
            return attempt
        assert attempt.exit_code == ExitCode.REQUEUED
    raise AssertionError("the run did not end")


@pytest.fixture(scope="module")
def undisturbed() -> Attempt:
    return train(None)


@pytest.fixture(scope="module")
def undisturbed_overlap() -> Attempt:
    return train(None, kind=KINDS["overlap"])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stops=st.lists(st.integers(1, STEPS), max_size=5),
    saves=st.sets(st.integers(1, STEPS)),
    crashes=st.lists(st.integers(1, STEPS), max_size=3),
)
def test_any_stops_give_the_same_bytes(
    tmp_path: Path, undisturbed: Attempt, stops: list[int], saves: set[int], crashes: list[int]
) -> None:
    folder = tmp_path / str(next(numbers))
    assert_same(disturb(folder, stops, saves, crashes), undisturbed)
    shutil.rmtree(folder)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stops=st.lists(st.integers(1, STEPS), max_size=3),
    saves=st.sets(st.integers(1, STEPS), min_size=1),
    crashes=st.lists(st.integers(1, STEPS), max_size=2),
)
def test_any_stops_where_parameters_are_copied_while_training_goes_on(
    tmp_path: Path,
    undisturbed_overlap: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    stops: list[int],
    saves: set[int],
    crashes: list[int],
) -> None:
    folder = tmp_path / str(next(numbers))

    def slowly(pieces: Any) -> None:
        time.sleep(0.01)  # so that the program goes on
        move(pieces)

    with monkeypatch.context() as patch:
        patch.setattr(overlap, "move", slowly)
        assert_same(disturb(folder, stops, saves, crashes, "overlap"), undisturbed_overlap)
    shutil.rmtree(folder)


@pytest.mark.parametrize("stop", range(1, STEPS + 1))
def test_a_stop_at_each_step(tmp_path: Path, undisturbed: Attempt, stop: int) -> None:
    first = train(
        open_run(tmp_path), before_step=lambda n, c: c.ask(urgent=True, stop=True) if n == stop and c else None
    )
    assert (first.exit_code, len(first.log)) == (ExitCode.REQUEUED, stop)
    second = train(open_run(tmp_path))
    assert second.began_at == stop
    assert_same(second, undisturbed)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, undisturbed: Attempt) -> None:
    train(open_run(tmp_path))
    again = train(open_run(tmp_path))
    assert again.began_at == STEPS
    assert torch.equal(again.weights["0.weight"], undisturbed.weights["0.weight"])
    assert len(again.log) == STEPS


def save_each(*steps: int) -> object:
    def before_step(n: int, committer: DirectCommitter | None) -> None:
        if n in steps and committer is not None:
            committer.ask(urgent=True)
        if n > max(steps):
            raise Crash

    return before_step


def packs(committer: DirectCommitter, seq: int) -> list[Path]:
    """Files of the checkpoint in that log entry that no older one has."""
    from job_wrapper.store import read_manifest

    root = Path(committer.uri.removeprefix("file://"))
    commits = {c.seq: c for c in committer._claim.entry.summary.commits}
    named = {s: set(read_manifest(committer.store, c.manifest).packs) for s, c in commits.items()}
    older = set().union(*(named[s] for s in named if s < seq))
    return [root / key for key in sorted(named[seq] - older)]


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, undisturbed: Attempt) -> None:
    committer = open_run(tmp_path)
    with pytest.raises(Crash):
        train(committer, before_step=save_each(5, 9))
    newest = committer._claim.entry.summary.commits[-1]
    pack = packs(committer, newest.seq)[0]
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1  # one bit
    pack.write_bytes(data)

    second = open_run(tmp_path)
    attempt = train(second)
    assert attempt.began_at == 5
    assert_same(attempt, undisturbed)
    verify_checkpoint(second.store, second._claim.entry.summary.commits[-1].manifest)


def test_when_all_are_damaged_nothing_is_begun_anew(tmp_path: Path) -> None:
    committer = open_run(tmp_path)
    with pytest.raises(Crash):
        train(committer, before_step=save_each(5, 9))
    for commit in committer._claim.entry.summary.commits:
        for pack in packs(committer, commit.seq):
            pack.unlink(missing_ok=True)
    with pytest.raises(RestoreFailed, match="none of the 2 checkpoints"):
        train(open_run(tmp_path))


def test_a_newer_attempt_ends_the_older_one(tmp_path: Path, undisturbed: Attempt) -> None:
    newer: list[Attempt] = []

    def before_step(n: int, committer: DirectCommitter | None) -> None:
        if n == 7 and committer is not None:
            newer.append(train(open_run(tmp_path)))  # resumes at 4 and finishes
        if n in (4, 8) and committer is not None:
            committer.ask(urgent=True)

    older = train(open_run(tmp_path), before_step=before_step)
    assert older.exit_code == ExitCode.FENCED
    assert newer[0].began_at == 4
    assert len(newer[0].log) == STEPS
    assert_same(newer[0], undisturbed)
