"""Proof, by trying, that a store keeps the promises that the run's log stands on (DESIGN §3).

A store that lets two creations of one object succeed would let a lost attempt overwrite its successor. Documentation does not tell:
several servers that speak S3 pass over ``If-None-Match`` without a word.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Barrier

from job_wrapper.errors import Damaged, ObjectMissing, StoreError, StoreRefused
from job_wrapper.store.codec import seal, unseal
from job_wrapper.store.io_types import ObjectStore, Put
from job_wrapper.store.paths import PROBE_PREFIX, PROOF_KEY

RACERS = 8
ROUNDS = 3
PATIENCE = 3.0
"""Seconds after which no further round is begun."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One promise, and what was seen of it."""

    name: str
    kept: bool
    detail: str


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What ``check_store`` found. Times in seconds (median), speeds in bytes a second; 0 where nothing was measured."""

    uri: str
    safe: bool
    verdict: str
    proofs: tuple[Proof, ...] = ()
    create_seconds: float = 0.0
    read_seconds: float = 0.0
    list_seconds: float = 0.0
    write_speed: float = 0.0
    read_speed: float = 0.0
    measured_bytes: int = 0


def ensure_proved(store: ObjectStore) -> None:
    """Prove ``store`` unless it carries the mark of an earlier proof. Raises ``StoreRefused`` or ``StoreError``."""
    if _is_marked(store):
        return
    for proof in prove(store):
        if not proof.kept:
            raise refusal(store, proof)
    mark(store)


def mark(store: ObjectStore) -> None:
    """Say in the store itself that it was proved. A mark that is there stays: by it a folder is known to be the same one (``same``)."""
    proof = seal("proof", {"time": time.time(), "racers": RACERS, "rounds": ROUNDS})
    if store.put_if_absent(PROOF_KEY, proof) is Put.EXISTS and not _is_marked(store):
        store.put(PROOF_KEY, proof)


def _is_marked(store: ObjectStore) -> bool:
    try:
        unseal(store.get(PROOF_KEY), "proof", f"{store.uri}/{PROOF_KEY}")
    except (ObjectMissing, Damaged):
        return False
    return True


def refusal(store: ObjectStore, proof: Proof) -> StoreRefused:
    """The error for a promise that was not kept."""
    return StoreRefused(
        f"{store.uri}: refused, because {proof.name} is not kept: {proof.detail}. "
        "A lost attempt could overwrite what its successor does. Use a store that keeps it, such as a shared POSIX file system, "
        "AWS S3, Google Cloud Storage, Azure Blob Storage, or an S3 server that honours If-None-Match"
    )


def prove(store: ObjectStore, rounds: int = ROUNDS) -> list[Proof]:
    """Try every promise, races ``rounds`` times; stops after the first that is not kept. Raises ``StoreRefused`` where it can't be written to, ``StoreError``."""
    prefix = f"{PROBE_PREFIX}{os.urandom(8).hex()}/"
    proofs: list[Proof] = []
    try:
        tests: tuple[Callable[[ObjectStore, str], Proof], ...] = (
            _refuses_a_second,
            partial(_one_winner, rounds=rounds),
            _read_after_write,
            _list_after_write,
            _delete_is_seen,
        )
        for test in tests:
            proofs.append(test(store, prefix))
            if not proofs[-1].kept:
                break
    finally:
        with contextlib.suppress(StoreError):  # a few bytes stay under .spotburst/probe/
            store.delete([info.key for info in store.list(prefix)])
    return proofs


def _refuses_a_second(store: ObjectStore, prefix: str) -> Proof:
    name, key = "put-if-absent", prefix + "second"
    store.put_if_absent(key, b"first")
    for _ in range(3):
        if store.put_if_absent(key, b"second") is not Put.EXISTS or store.get(key) != b"first":
            return Proof(name, False, "creating an object that was there already was not refused")
    return Proof(name, True, "an object that exists is not created again")


def _one_winner(store: ObjectStore, prefix: str, rounds: int = ROUNDS) -> Proof:
    from concurrent.futures import ThreadPoolExecutor  # once a store's life, while the rest here is for every start

    name = "one winner of racing creations"
    barrier = Barrier(RACERS)

    def race(key: str, racer: int) -> Put | None:
        barrier.wait()
        try:
            return store.put_if_absent(key, f"racer {racer}".encode())
        except StoreRefused:
            raise
        except StoreError:
            return None

    decided, began = 0, time.monotonic()
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(rounds * 2):
            key = f"{prefix}race-{number}"
            results = list(pool.map(race, [key] * RACERS, range(RACERS)))
            winners = [racer for racer, result in enumerate(results) if result is Put.CREATED]
            if len(winners) > 1:
                return Proof(name, False, f"{len(winners)} of {RACERS} racing creations of one object all succeeded")
            if winners and None not in results:
                if store.get(key) != f"racer {winners[0]}".encode():
                    return Proof(name, False, "the object does not hold what its only creator wrote")
                decided += 1
            # A server that makes racers wait (SeaweedFS: a second each) is not raced longer than needed.
            if decided == rounds or (decided and time.monotonic() - began > PATIENCE):
                return Proof(name, True, f"{decided} rounds of {RACERS} racing creations had one winner each")
    raise StoreError(f"{store.uri}: too many of {RACERS} requests at once fail; try again later")


def _read_after_write(store: ObjectStore, prefix: str) -> Proof:
    name = "read after write"
    for number in range(3):
        key, data = f"{prefix}read-{number}", os.urandom(4096)
        store.put(key, data)
        if _or_missing(lambda key=key: store.get(key)) != data or store.get_range(key, 1000, 96) != data[1000:1096]:  # type: ignore[misc]
            return Proof(name, False, "an object that was just written is not read back as it was written")
    return Proof(name, True, "an object is read back as soon as it is written")


def _list_after_write(store: ObjectStore, prefix: str) -> Proof:
    name, folder = "list after write", prefix + "list/"
    for number in range(3):
        store.put_if_absent(f"{folder}{number}", b"x" * (number + 1))
        seen = [(info.key, info.size) for info in store.list(folder)]
        if seen != [(f"{folder}{n}", n + 1) for n in range(number + 1)]:
            return Proof(name, False, f"a listing just after a write shows {seen}")
    return Proof(name, True, "a listing shows what was just written")


def _delete_is_seen(store: ObjectStore, prefix: str) -> Proof:
    name, key = "delete", prefix + "read-0"
    store.delete([key, prefix + "never-there"])
    if _or_missing(lambda: store.get(key)) is not None:
        return Proof(name, False, "an object that was deleted can still be read")
    return Proof(name, True, "a deleted object is gone")


def _or_missing(read: Callable[[], bytes]) -> bytes | None:
    try:
        return read()
    except ObjectMissing:
        return None
