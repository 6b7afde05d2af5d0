"""What every save and every clearing up keeps to, however the checkpoint is made: nothing is written twice, nothing that may be restored
is deleted, and nothing is deleted before what replaces it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from job_wrapper.store.io_types import Put
from job_wrapper.store.log import RunLog, find_runs
from job_wrapper.store.paths import log_prefix, run_path
from job_wrapper.store.read import verify_checkpoint
from tests.store.checkpoints import RUN, load, save, writer
from tests.store.faulty import MemoryStore
from tests.store.savers import WAYS, fresh_folders


class Watched(MemoryStore):
    """Asserts at every request that changes something."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[str] = set()
        self.deleted = 0

    def _once(self, key: str) -> None:
        if key.startswith(RUN):
            assert key not in self.written, f"{key} is written a second time"
            self.written.add(key)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._once(key)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> Put:
        self._once(key)
        return super().put_if_absent(key, data)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            assert not key.startswith(log_prefix(RUN)), "an entry of the log is deleted"
            super().delete([key])
            self.deleted += 1
            newest = RunLog(self, RUN).tail()
            assert newest is not None
            for commit in newest.summary.commits:
                verify_checkpoint(self, commit.manifest)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_written_twice_and_nothing_is_deleted_that_may_be_restored(way: str, tmp_path: Path) -> None:
    store, folders = Watched(), fresh_folders(tmp_path)
    step = 0
    for restart in range(3):
        saver = WAYS[way](store, restart, next(folders))
        for _ in range(4):
            step += 1
            saver.save(step)
            saver.collect()
            saver.check(saver.claim.entry.summary.commits[-1], next(folders))
    assert store.deleted >= 20


def test_a_new_job_in_the_same_place_begins_a_run_of_its_own() -> None:
    store = MemoryStore()
    first = RunLog(store, run_path("c", "12")).claim(writer(0, job="12"))
    entry = save(first, 1, {"w": b"1"})
    second = RunLog(store, run_path("c", "13")).claim(writer(0, job="13"))
    assert second.epoch == 1 and second.entry.summary.commits == ()
    save(second, 1, {"w": b"2"})
    assert load(store, entry.summary.commits[-1].manifest) == {"w": b"1"}
    assert (find_runs(store, "c", "12"), find_runs(store, "c", "13")) == (["c/12/main"], ["c/13/main"])
