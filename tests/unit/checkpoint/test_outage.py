"""What a store that is away means to a program, with the wrapper and without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from job_wrapper.checkpoint import Checkpointer
from job_wrapper.checkpoint.outage import Waiting, read_patiently, waited_out
from job_wrapper.checkpoint.process import ended_by_outage
from job_wrapper.errors import CheckpointFailed, Damaged, StoreAway, StoreError, StoreRefused
from tests.unit.checkpoint.training import open_run


class Patient:
    """A committer as far as waiting looks at one."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.attention = False


def test_without_a_wrapper_a_save_that_fails_is_raised(tmp_path: Path) -> None:
    committer = open_run(tmp_path / "store")
    checkpoint = Checkpointer(w=torch.ones(3), committer=committer)
    (tmp_path / "store").rename(tmp_path / "away")
    checkpoint.step()
    with pytest.raises(CheckpointFailed, match="not there any more"):
        checkpoint.close()


@pytest.mark.parametrize(
    ("error", "under_the_wrapper"),
    [(StoreError("away"), True), (StoreAway("away"), True), (StoreRefused("no"), False), (None, False)],
)
def test_only_an_outage_is_waited_out_and_only_under_the_wrapper(
    error: BaseException | None, under_the_wrapper: bool
) -> None:
    assert waited_out(Patient(60.0), error) is under_the_wrapper  # type: ignore[arg-type]
    assert not waited_out(Patient(0.0), error)  # type: ignore[arg-type]


def test_reading_waits_and_ends_with_a_kind_of_its_own() -> None:
    answers: list[BaseException | str] = [StoreError("away"), "state"]

    def read() -> str:
        answer = answers.pop(0)
        if isinstance(answer, str):
            return answer
        raise answer

    assert read_patiently(Patient(60.0), read) == "state"  # type: ignore[arg-type]
    answers[:] = [StoreError("away")] * 9
    with pytest.raises(StoreAway, match="--store-patience"):
        read_patiently(Patient(0.01), read)  # type: ignore[arg-type]
    for patience, error in ((0.0, StoreError("away")), (60.0, Damaged("flipped")), (60.0, StoreRefused("no"))):
        answers[:] = [error]
        with pytest.raises(type(error)) as raised:
            read_patiently(Patient(patience), read)  # type: ignore[arg-type]
        assert raised.value is error


def test_waiting_ends_when_patience_does_and_pauses_no_longer_than_the_wrapper_is_silent() -> None:
    committer = Patient(60.0)
    committer.attention = True
    Waiting(committer).pause(StoreError("away"))  # type: ignore[arg-type]
    with pytest.raises(StoreAway):
        Waiting(Patient(0.0)).pause(StoreError("away"))  # type: ignore[arg-type]


def test_what_ends_a_program_for_an_outage_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    away, damaged = (StoreError("away"), None), (Damaged("flipped"), None)
    monkeypatch.setenv("SPOTBURST_SOCKET", "/somewhere")
    assert ended_by_outage(StoreError("away"))
    assert ended_by_outage(CheckpointException("save", {0: away, 1: away}))  # type: ignore[dict-item]
    assert not ended_by_outage(CheckpointException("save", {0: away, 1: damaged}))  # type: ignore[dict-item]
    assert not ended_by_outage(CheckpointException("save", {}))
    assert not ended_by_outage(StoreRefused("no"))
    assert not ended_by_outage(ValueError())
    monkeypatch.delenv("SPOTBURST_SOCKET")
    assert not ended_by_outage(StoreError("away"))
