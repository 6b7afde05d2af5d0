"""One file system for the runs of several users."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_wrapper.errors import StoreRefused
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.freeing import free
from job_wrapper.store.io_types import Writer
from job_wrapper.store.paths import log_key
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.read import verify_checkpoint
from tests.fixtures.as_user import as_user
from tests.fixtures.unmet import need_root
from tests.store.checkpoints import save


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own are private."""
    need_root("to be two users")
    with tempfile.TemporaryDirectory(prefix="spotburst-test-") as folder:
        yield Path(folder)


def test_an_open_root_serves_all_users_and_tells_whose_a_run_is(everybodys: Path) -> None:
    root = everybodys
    root.chmod(0o1777)
    store = open_store(f"file://{root}")
    assert isinstance(store, PosixStore)

    def claim(job: str) -> None:
        RunLog(store, f"c/{job}/main").claim(Writer("c", job, 0, 0, "h", job))

    assert as_user(1001, lambda: claim("1")) == 0
    assert as_user(1002, lambda: claim("2")) == 0
    assert (store.owner("c/1"), store.owner("c/2"), store.owner("c/3")) == ((1001, 1001), (1002, 1002), None)
    assert as_user(1002, lambda: store.put("c/1/main/log/00000001.json", b"forged")) != 0, "a run is its user's"
    assert as_user(1002, lambda: (root / "c" / "1").rename(root / "c" / "4")) != 0, "and stays in its place"


def test_root_frees_a_run_as_its_owner_and_nobody_elses_through_a_link(everybodys: Path) -> None:
    everybodys.chmod(0o1777)
    store = open_store(f"file://{everybodys}")

    def finish(job: str) -> None:
        claim = RunLog(store, f"c/{job}/main").claim(Writer("c", job, 0, 0, "h", job))
        save(claim, 1, {"w": b"1" * 1000})
        claim.end(0, "Finished")

    def link() -> None:
        finish("2")
        data = everybodys / "c" / "2" / "main" / "data"
        shutil.rmtree(data)
        data.symlink_to(everybodys / "c" / "1" / "main" / "data")

    assert (as_user(1001, lambda: finish("1")), as_user(1002, link), as_user(1003, lambda: finish("3"))) == (0, 0, 0)
    last = {job: RunLog(store, f"c/{job}/main").tail() for job in "123"}
    with pytest.raises(StoreRefused, match="c/2/main/data"):
        free(store, "c/2/main", last["2"], "Deleted")
    verify_checkpoint(store, last["1"].summary.commits[-1].manifest)
    assert free(store, "c/3/main", last["3"], "Deleted") > 1000
    assert not (everybodys / "c" / "3" / "main" / "data").exists()
    assert store.owner(log_key("c/3/main", last["3"].seq + 1)) == (1003, 1003)
