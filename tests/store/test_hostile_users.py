"""One file system for many users, one of whom means the others ill: what is laid there in another's name, or in nobody's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from job_wrapper.errors import Damaged, StoreRefused
from job_wrapper.run.preflight import require_own
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.freeing import Sweep, free
from job_wrapper.store.io_types import ObjectStore, Writer
from job_wrapper.store.paths import log_key
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.read import verify_checkpoint
from slurm_plugin.manager.runs import RunReader
from slurm_plugin.manager.saves import Saves
from slurm_plugin.manager.say import Once
from slurm_plugin.requeue import Continue, Limits, decide
from tests.fixtures.as_user import as_user
from tests.fixtures.unmet import need_root
from tests.store.checkpoints import save
from tests.unit.reconcile.views import job

MANAGER, VICTIM, HOSTILE = 1001, 1002, 1003


@pytest.fixture
def root() -> Iterator[Path]:
    """A store for everybody, proved and laid out by the manager; whatever lies in it is gone afterwards."""
    need_root("to be several users")
    with tempfile.TemporaryDirectory(prefix="spotburst-test-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        assert as_user(MANAGER, lambda: RunReader("c", lambda: open_store(f"file://{folder}"), Once())._mark()) == 0
        yield folder
        subprocess.run(["rm", "-rf", name], check=True)  # folders in folders without end are too many for shutil
        folder.mkdir()


def store_of(root: Path) -> PosixStore:
    store = open_store(f"file://{root}")
    assert isinstance(store, PosixStore)
    return store


def claim(store: ObjectStore, name: str) -> None:
    RunLog(store, f"c/{name}/main").claim(Writer("c", name, 0, 0, "h", "nonce"))


def finish(store: ObjectStore, name: str) -> None:
    held = RunLog(store, f"c/{name}/main").claim(Writer("c", name, 0, 0, "h", name))
    save(held, 1, {"w": b"1" * 1000})
    held.end(0, "Finished")


def test_a_run_that_another_user_forged_in_a_jobs_name_brings_no_job_back(root: Path) -> None:
    store = store_of(root)
    done = replace(job(100, "COMPLETED", end_time=1000), user_id=VICTIM)
    assert as_user(HOSTILE, lambda: claim(store, "100")) == 0

    def look(user: int, expected: type[object]) -> None:
        tails = RunReader("c", lambda: store, Once()).read(replace(done, user_id=user))
        assert isinstance(decide(done, tails, Limits()), expected)

    assert as_user(MANAGER, lambda: look(VICTIM, Continue)) == 0
    assert as_user(MANAGER, lambda: look(HOSTILE, Continue)) != 0, "in a job of one's own it counts"


def test_a_pipe_or_a_device_in_a_log_holds_nobody_up(root: Path) -> None:
    store = store_of(root)

    def lay() -> None:
        claim(store, "5")
        os.mkfifo(root / log_key("c/5/main", 1))
        claim(store, "6")
        (root / log_key("c/6/main", 1)).symlink_to("/dev/zero")
        (root / log_key("c/6/main", 2)).write_bytes(b"makes a hole of the one before")
        finish(store, "7")
        folder = root / "c" / "8" / "main" / "log"
        folder.parent.mkdir(parents=True)
        folder.symlink_to(folder)

    def look() -> None:
        saves = Saves("c", lambda: store, Once())
        saves.watch(replace(job(number, "RUNNING"), user_id=HOSTILE) for number in (5, 6, 8, 7))
        saves.look()
        saves.look()
        assert saves.found()["7"] is not None
        assert saves.reachable
        for name in ("5", "6"):
            with pytest.raises(Damaged, match="no regular file"):
                store.get(log_key(f"c/{name}/main", 1))
        with pytest.raises(Damaged, match="no regular file"), store.mapped(log_key("c/5/main", 1), 0, 1):
            pass

    assert as_user(HOSTILE, lay) == 0
    assert as_user(MANAGER, look) == 0


def test_one_users_closed_or_endless_folders_keep_no_other_run_from_being_freed(root: Path) -> None:
    store = store_of(root)

    def lay() -> None:
        for number in (2, 3):
            finish(store, str(number))
        (root / "c" / "jobs" / "2").chmod(0)
        (root / "c" / "3" / "main" / "log").chmod(0)
        loop = root / "c" / "4" / "main" / "log"
        claim(store, "4")
        loop.rename(loop.with_name("away"))
        loop.symlink_to(loop)
        deep = root / "c" / "jobs" / "5"
        deep.mkdir()
        os.chdir(deep)
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")

    def sweep() -> None:
        assert [run for run, _ in Sweep(store, "c", age=-10).due()] == ["c/9/main"]
        assert [run for run, _ in Sweep(store, "c", age=-10, gone_since=lambda _: 0.0).due()] == ["c/9/main"]

    assert as_user(HOSTILE, lay) == 0
    assert as_user(VICTIM, lambda: finish(store, "9")) == 0
    assert as_user(MANAGER, sweep) == 0


def test_root_frees_nothing_where_a_folder_on_the_way_is_a_link_or_somebody_elses(root: Path) -> None:
    store = store_of(root)
    assert as_user(VICTIM, lambda: finish(store, "1")) == 0
    assert as_user(HOSTILE, lambda: finish(store, "2")) == 0
    last = RunLog(store, "c/2/main").tail()
    assert last is not None

    def swap() -> None:
        (root / "c" / "2").rename(root / "c" / "3")
        (root / "c" / "2").symlink_to(root / "c" / "1")

    assert as_user(HOSTILE, swap) == 0
    later = replace(last, seq=last.seq + 50)
    with pytest.raises(StoreRefused, match="several users, or one of them is a link"):
        free(store, "c/2/main", later, "Expired")
    kept = RunLog(store, "c/1/main").tail()
    assert kept is not None
    verify_checkpoint(store, kept.summary.commits[-1].manifest)


def test_what_all_runs_have_in_common_belongs_to_the_manager_and_who_comes_first_can_move_nothing(root: Path) -> None:
    store = store_of(root)
    assert as_user(HOSTILE, lambda: claim(store, "1")) == 0
    assert as_user(VICTIM, lambda: claim(store, "2")) == 0
    common = [folder.lstat() for folder in (root / "c", root / "c" / "jobs", root / ".spotburst")]
    assert {(info.st_uid, info.st_mode & 0o7777) for info in common} == {(MANAGER, 0o1777)}
    for folder in ("c/2", "c/jobs/2", "c", "c/jobs", ".spotburst"):
        assert as_user(HOSTILE, lambda f=folder: (root / f).rename(root / "gone")) != 0, folder


def test_no_run_is_begun_where_another_user_holds_the_jobs_pointers(root: Path) -> None:
    store = store_of(root)

    def lay() -> None:
        (root / "c" / "jobs" / "7").mkdir()
        (root / "c" / "jobs" / "7").chmod(0o777)

    def begin() -> None:
        require_own(store, "c/8/main", "8")
        with pytest.raises(StoreRefused, match="c/jobs/7 belongs to user 1003"):
            require_own(store, "c/named/main", "7")

    assert as_user(HOSTILE, lay) == 0
    assert as_user(VICTIM, begin) == 0
