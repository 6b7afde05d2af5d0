"""Servers that fail, hang, and break off, and answers that get lost, at every request of a save and a restore on every kind of bucket: the save
raises, nothing is committed, and the next one works; a restore is right or raises."""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Iterator

import pytest

from job_wrapper.errors import StoreError
from job_wrapper.store import bucket_clients
from job_wrapper.store.claim import Claim
from job_wrapper.store.decided_put import Patience
from job_wrapper.store.io_types import Kind, ObjectStore
from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store
from tests.fixtures.lossy import (
    HUNG,
    LATE,
    LOST_ANSWER,
    LOST_REQUEST,
    PASS,
    TORN,
    Choose,
    Fate,
    Lossy,
    kind,
    lossy,
    unkind,
)
from tests.fixtures.ports import free_ports
from tests.fixtures.server import Server
from tests.store.checkpoints import RUN, load, save, writer
from tests.store.conftest import use

pytestmark = pytest.mark.s3
PATIENCE = Patience(seconds=120, first=0.01, longest=0.1)


@pytest.fixture(params=["ministack", "azurite", "gcs"])
def behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Lossy]]:
    """A URI and the proxy before it; the clients repeat a request once."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    monkeypatch.setattr(bucket_clients, "RETRIES", 1)
    with lossy(server.environment, free_ports(1)[0]) as proxy:
        use(monkeypatch, proxy.environment(server.environment))
        yield f"{server.uri}/{os.urandom(6).hex()}", proxy


def writes(where: str, fate: Fate, *, first: int = 1, last: int = 10**9) -> Choose:
    """``fate`` for the writes under ``where`` from the ``first`` to the ``last``."""
    count = 0

    def choose(method: str, path: str) -> Fate:
        nonlocal count
        if method not in ("PUT", "POST") or f"/{where}/" not in path.replace("%2F", "/"):
            return PASS
        count += 1
        return fate if first <= count <= last else PASS

    return choose


def claimed(uri: str) -> Claim:
    return RunLog(open_store(uri, prove=False), RUN, patience=PATIENCE).claim(writer())


def steps(store: ObjectStore) -> list[int | None]:
    """Of all commits in the log."""
    return [e.summary.commits[-1].step for e in RunLog(store, RUN).entries() if e.kind is Kind.COMMIT]


def test_a_save_that_fails_at_any_request_commits_nothing(behind: tuple[str, Lossy]) -> None:
    uri, proxy = behind
    claim = claimed(uri)
    items = {"w": random.randbytes(9 << 20), "b": b"1"}  # goes up in two parts
    save(claim, 0, items)
    fates = ("503", LOST_ANSWER, "500", "429", LOST_REQUEST)
    failed = 0
    for number in range(1, 100):
        choose, met = writes("data", fates[number % len(fates)], first=number), []

        def noted(method: str, path: str, choose: Choose = choose, met: list[Fate] = met) -> Fate:
            met.append(choose(method, path))
            return met[-1]

        proxy.choose = noted
        try:
            save(claim, 1, items)
        except StoreError as error:
            assert re.match(r"(s3|az|gs)://checkpoints/", str(error)) and "\n" not in str(error)
            assert steps(claim.store) == [0]
            failed += 1
        else:
            assert set(met) == {PASS}, "a save stands whose every answer was good, and no other"
            break
    assert failed >= 5
    proxy.choose = kind
    save(claim, 2, items)
    assert steps(claim.store) == [0, 1, 2]
    assert load(claim.store, claim.entry.summary.commits[-1].manifest) == items


@pytest.mark.parametrize("fate", ["503", LOST_ANSWER, LOST_REQUEST, LATE])
def test_a_commit_whose_answer_is_bad_stands_once(behind: tuple[str, Lossy], fate: Fate) -> None:
    uri, proxy = behind
    claim = claimed(uri)
    proxy.choose = writes("log", fate, last=1)
    save(claim, 1, {"w": b"1"})
    save(claim, 2, {"w": b"2"})
    proxy.settle()
    assert proxy.met[fate] == 1
    assert steps(claim.store) == [1, 2]


def test_a_commit_that_stays_undecided_raises_and_counts_at_most_once(behind: tuple[str, Lossy]) -> None:
    uri, proxy = behind
    quick = Patience(seconds=0.3, first=0.01, longest=0.1)
    claim = RunLog(open_store(uri, prove=False), RUN, patience=quick).claim(writer())

    def gone(method: str, path: str) -> Fate:
        return LOST_ANSWER if "/log/" in path.replace("%2F", "/") else PASS

    proxy.choose = gone
    with pytest.raises(StoreError, match="can't tell whether this log entry was written"):
        save(claim, 1, {"w": b"1"})
    proxy.choose = kind
    save(claim, 2, {"w": b"2"})
    assert steps(claim.store) == [1, 2]  # the first had arrived, and was found


def test_a_server_that_hangs_is_given_up(behind: tuple[str, Lossy], monkeypatch: pytest.MonkeyPatch) -> None:
    uri, proxy = behind
    # Who gives up soon is asked only for what hangs, and for what is tried again: a busy machine is slow to answer the rest.
    monkeypatch.setattr(bucket_clients, "ONCE_TIMEOUT", "1s")
    claim = claimed(uri)
    manifest = save(claim, 1, {"w": b"1"}).summary.commits[-1].manifest
    patient = claim.store
    monkeypatch.setattr(bucket_clients, "TIMEOUT", "1s")
    claim.store = open_store(uri, prove=False)
    proxy.choose = lambda method, path: HUNG
    with pytest.raises(StoreError, match=r"the server can't be reached \(timed out\)"):
        save(claim, 2, {"w": b"2"})
    with pytest.raises(StoreError, match="timed out"):
        load(claim.store, manifest)
    claim.store = patient
    proxy.choose = writes("log", HUNG, last=1)
    save(claim, 3, {"w": b"3"})
    assert steps(claim.store) == [1, 3]


@pytest.mark.parametrize("fate", [TORN, "503", LOST_ANSWER])
def test_a_restore_with_bad_answers_is_right_or_raises(behind: tuple[str, Lossy], fate: Fate) -> None:
    uri, proxy = behind
    claim = claimed(uri)
    items = {"w": random.randbytes(1 << 20), "b": os.urandom(1000)}
    manifest = save(claim, 1, items).summary.commits[-1].manifest
    proxy.choose = lambda method, path: proxy.seen("a read")
    assert load(claim.store, manifest) == items
    for number in range(1, proxy.met["a read"] + 1):
        proxy.choose = reads(fate, number, number)
        with contextlib.suppress(StoreError):
            assert load(claim.store, manifest) == items
        proxy.choose = reads(fate, number, 10**9)
        with pytest.raises(StoreError):
            load(claim.store, manifest)


def reads(fate: Fate, first: int, last: int) -> Choose:
    """``fate`` for the requests from the ``first`` to the ``last``."""
    count = 0

    def choose(method: str, path: str) -> Fate:
        nonlocal count
        count += 1
        return fate if first <= count <= last else PASS

    return choose


def test_an_asynchronous_save_of_a_training_that_fails(behind: tuple[str, Lossy]) -> None:
    import torch

    from job_wrapper.checkpoint import Checkpointer, DirectCommitter
    from job_wrapper.errors import CheckpointFailed

    uri, proxy = behind
    committer = DirectCommitter.open(uri, "training")
    state = torch.zeros(1 << 18)
    with Checkpointer(state=state, committer=committer) as checkpoint:
        for fate in ("503", LOST_ANSWER):
            proxy.choose = writes("data", fate)
            committer.ask()
            checkpoint.step()
            with pytest.raises(CheckpointFailed, match="the one before it stands"):
                for _ in range(12000):
                    time.sleep(0.01)
                    checkpoint.step()
        proxy.choose = kind
        state += 1
    entries = RunLog(committer.store, "local/training/main").entries()
    assert [e.kind for e in entries].count(Kind.COMMIT) == 1
    again = torch.zeros(1 << 18)
    with Checkpointer(state=again, committer=DirectCommitter.open(uri, "training")):
        assert bool(again.eq(1).all())


def test_a_save_and_a_restore_through_an_unkind_network(
    behind: tuple[str, Lossy], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, proxy = behind
    monkeypatch.setattr(bucket_clients, "RETRIES", 8)
    proxy.choose = unkind(7)
    claim = claimed(uri)
    items = {"w": random.randbytes(17 << 20), "b": os.urandom(100)}
    for step in range(2):
        manifest = save(claim, step, items).summary.commits[-1].manifest
        assert load(claim.store, manifest) == items
    assert steps(claim.store) == [0, 1]
