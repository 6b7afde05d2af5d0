"""Ended runs' checkpoints are freed while the manager runs."""

from __future__ import annotations

import time
from pathlib import Path

from job_wrapper.errors import StoreError
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.freeing import KEEP_ENDED, size_of
from job_wrapper.store.io_types import ObjectStore
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.sweeper import Sweeper
from tests.store.checkpoints import save, writer


def ended(store: ObjectStore, run: str, ago: float) -> None:
    claim = RunLog(store, run, clock=lambda: time.time() - ago).claim(writer(0))
    save(claim, 1, {"w": b"1" * 1000})
    claim.end(0, "Finished")


def test_sweeps_at_the_start_and_again_after_a_fault(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store", prove=False, create=True)
    ended(store, "c/12/old", KEEP_ENDED + 60)
    ended(store, "c/12/new", KEEP_ENDED - 3600)
    opened: list[int] = []

    def flaky() -> ObjectStore:
        opened.append(1)
        if len(opened) == 1:
            raise StoreError("no answer")
        return store

    sweeper = Sweeper("c", flaky, KEEP_ENDED, Once(), every=0.05)
    sweeper.start()
    until = time.monotonic() + 60
    while size_of(store, "c/12/old") and time.monotonic() < until:
        time.sleep(0.02)
    sweeper.stop()
    assert size_of(store, "c/12/old") == 0
    assert size_of(store, "c/12/new") > 1000
