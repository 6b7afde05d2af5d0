"""A store that breaks a promise is refused by name."""

from __future__ import annotations

import pytest

from job_wrapper.errors import StoreError, StoreRefused
from job_wrapper.store import probe
from job_wrapper.store.io_types import Put
from job_wrapper.store.probe import ensure_proved
from tests.store.faulty import (
    CheckThenWrite,
    FaultyStore,
    MemoryStore,
    Overwriting,
    StaleLists,
    StaleReads,
    unavailable,
)


@pytest.mark.parametrize(
    ("store", "promise"),
    [
        (Overwriting(), "put-if-absent is not kept"),
        (CheckThenWrite(), r"one winner of racing creations is not kept: [2-8] of 8 racing creations"),
        (StaleReads(), "read after write is not kept"),
        (StaleLists(), "list after write is not kept"),
    ],
)
def test_broken_promise_is_named(store: MemoryStore, promise: str) -> None:
    with pytest.raises(StoreRefused, match=f"memory://test: refused, because {promise}"):
        ensure_proved(store)
    assert ".spotburst/store.json" not in store.objects


def test_failure_at_any_operation_leaves_no_mark_of_safety() -> None:
    whole = FaultyStore(MemoryStore())
    ensure_proved(whole)
    passed = 0
    for at in range(1, len(whole.operations)):
        inner = MemoryStore()
        store = FaultyStore(inner, at, error=unavailable)
        try:
            ensure_proved(store)
        except StoreError as error:
            assert not isinstance(error, StoreRefused)
            assert ".spotburst/store.json" not in inner.objects
        else:
            passed += 1  # a racer's failure, the first look for the mark, or the tidying up
    assert 0 < passed < len(whole.operations) // 2 + 8


class NoRace(MemoryStore):
    """Keeps every promise, but answers no request that comes with others."""

    def put_if_absent(self, key: str, data: bytes) -> Put:
        if "/race-" in key:
            raise unavailable()
        return super().put_if_absent(key, data)


def test_a_store_whose_races_were_never_decided_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PATIENCE", -1.0)  # as where each of them takes until its timeout
    store = NoRace()
    with pytest.raises(StoreError, match="too many of 8 requests at once fail"):
        ensure_proved(store)
    assert ".spotburst/store.json" not in store.objects
