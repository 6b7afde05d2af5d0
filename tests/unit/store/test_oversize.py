"""Objects larger than spotburst ever writes, put there by somebody who can write to the store: refused without being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from job_wrapper.errors import Damaged
from job_wrapper.store import RunLog, find_runs, open_store, run_path
from job_wrapper.store.io_types import Writer

MORE_THAN_MEMORY = 1 << 40
"""Bytes: as a hole in a file it takes no room on the disk."""


def grow(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(MORE_THAN_MEMORY)


def test_a_huge_log_entry_and_a_huge_pointer_are_refused_unread(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri(), prove=False)
    run = run_path("c", "7")
    log = RunLog(store, run)
    log.claim(Writer("c", "7", 0, 0, "host", "n1"), body={})
    assert find_runs(store, "c", "7") == [run]
    (entry,) = (tmp_path / run / "log").glob("*.json")
    grow(entry)
    for read in (RunLog(store, run).tail, RunLog(store, run).entries):
        with pytest.raises(Damaged, match=f"{entry.name}: damaged: {MORE_THAN_MEMORY} bytes"):
            read()
    (pointer,) = (path for path in (tmp_path / "c" / "jobs").rglob("*") if path.is_file())
    grow(pointer)
    with pytest.raises(Damaged, match=f"damaged: {MORE_THAN_MEMORY} bytes"):
        find_runs(store, "c", "7")
