"""``spotburst store check``: is this store safe, and how fast is it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from job_wrapper.errors import StoreError
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.open import open_store
from job_wrapper.store.paths import PROBE_PREFIX
from job_wrapper.store.probe import Proof, StoreReport, mark, prove, refusal
from job_wrapper.store.race import race_processes
from job_wrapper.store.read import verify_checkpoint
from job_wrapper.store.write import PartWriter, write_manifest

TRIES = 10
ROUNDS = 10
BYTES = 256 << 20


def check_store(uri: str, endpoint_url: str = "", *, size: int = BYTES) -> StoreReport:
    """Prove the promises of the store at ``uri`` by trying, then measure it with ``size`` bytes.

    Never raises for a store that is refused or can't be reached: ``safe`` is False and ``verdict`` tells why and what to do.
    Leaves nothing behind but the mark of a store that is safe.
    """
    try:
        store = open_store(uri, endpoint_url=endpoint_url, prove=False, create=True)
        proofs = tuple(prove(store, rounds=ROUNDS))
        if all(proof.kept for proof in proofs):
            proofs += (_raced_by_processes(store, uri, endpoint_url),)
    except StoreError as error:
        return StoreReport(uri, False, str(error))
    broken = [proof for proof in proofs if not proof.kept]
    if broken:
        return StoreReport(uri, False, str(refusal(store, broken[0])), proofs)
    report = StoreReport(uri, True, f"{uri}: safe for checkpoints", proofs)
    try:
        report = _measured(store, report, size)
        mark(store)
        return report
    except StoreError as error:
        return replace(report, safe=False, verdict=f"{uri}: keeps its promises, but failed under load: {error}")


def _raced_by_processes(store: ObjectStore, uri: str, endpoint_url: str) -> Proof:
    prefix = f"{PROBE_PREFIX}{os.urandom(8).hex()}/"
    try:
        return race_processes(store, uri, endpoint_url, prefix, ROUNDS)
    finally:
        with contextlib.suppress(StoreError):
            store.delete([info.key for info in store.list(prefix)])


def _measured(store: ObjectStore, report: StoreReport, size: int) -> StoreReport:
    prefix = f"{PROBE_PREFIX}{os.urandom(8).hex()}"
    try:
        create = _median(lambda n: store.put_if_absent(f"{prefix}/log/{n}", b"x" * 1000))
        read = _median(lambda n: store.get(f"{prefix}/log/{n}"))
        listing = _median(lambda n: list(store.list(f"{prefix}/log/")))
        # Random, so that a file system that compresses shows its real speed; one block again and again is random enough for that.
        block = memoryview(os.urandom(16 << 20))
        data = f"{prefix}/data/e00000001"
        writer = PartWriter(store, data, "speed")
        with writer:
            began = time.perf_counter()
            for number in range(max(1, size // len(block))):
                writer.add_bytes(str(number), block)
            part = writer.finish()
            wrote = time.perf_counter() - began
        manifest = write_manifest(store, prefix, 1, data, step=None, parts={"speed": part})
        began = time.perf_counter()
        verify_checkpoint(store, manifest)
        verified = time.perf_counter() - began
    finally:
        with contextlib.suppress(StoreError):
            store.delete([info.key for info in store.list(prefix + "/")])
    return replace(
        report,
        create_seconds=create,
        read_seconds=read,
        list_seconds=listing,
        write_speed=writer.uploaded / wrote,
        read_speed=writer.uploaded / verified,
        measured_bytes=writer.uploaded,
    )


def _median(act: Callable[[int], object]) -> float:
    times = []
    for number in range(TRIES):
        began = time.perf_counter()
        act(number)
        times.append(time.perf_counter() - began)
    return median(times)
