"""A store's folder that goes away while it is used, and what may lie in its place then."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.errors import ObjectMissing, StoreError, StoreRefused
from job_wrapper.store import RunLog, mark_of, open_store
from job_wrapper.store.check import check_store
from job_wrapper.store.io_types import ObjectStore, Put
from job_wrapper.store.posix import PosixStore

MOUNTED = "was its file system unmounted"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def bare(folder: Path) -> Path:
    """Another folder is there now; where the store's own went."""
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()
    return away


def everything(store: ObjectStore) -> None:
    """Each call says that the store is away, and none that something is missing in it."""
    calls = (
        lambda: store.put("run/new", b"2"),
        lambda: store.put_if_absent("run/log/00000001.json", b"2"),
        lambda: store.open_write("run/data/pack"),
        lambda: store.get("run/old"),
        lambda: store.get_range("run/old", 0, 1),
        lambda: list(store.list("run/")),
        lambda: RunLog(store, "run").tail(),
    )
    for call in calls:
        with pytest.raises(StoreError, match=MOUNTED) as caught:
            call()
        assert not isinstance(caught.value, ObjectMissing)


@pytest.mark.parametrize("begun", ["", "by another"])
def test_nothing_is_looked_for_or_saved_in_another_folder(folder: Path, begun: str) -> None:
    store = open_store(f"file://{folder}")
    store.put("run/old", b"1")
    away = bare(folder)
    if begun:
        open_store(f"file://{folder}").put("other/run", b"3")
    everything(store)
    assert not (folder / "run").exists()
    shutil.rmtree(folder)
    everything(store)
    assert not folder.exists()
    away.rename(folder)
    assert store.get("run/old") == b"1"
    assert store.put_if_absent("run/log/00000001.json", b"2") is Put.CREATED


def test_what_is_mounted_anew_is_known_by_its_mark(folder: Path) -> None:
    store = open_store(f"file://{folder}")
    store.put("run/old", b"1")
    away = bare(folder)
    shutil.copytree(away, folder, dirs_exist_ok=True)
    store.put("another/run", b"2")
    with pytest.raises(ObjectMissing):
        store.get("run/older")
    assert (folder / "another/run").exists()


def test_a_store_is_taken_by_its_mark_alone(folder: Path) -> None:
    uri = f"file://{folder}"
    mark = mark_of(open_store(uri))
    assert mark and mark_of(open_store(uri, mark=mark)) == mark
    bare(folder)
    with pytest.raises(StoreError, match="Is its file system mounted on this node"):
        open_store(uri, mark=mark)
    assert not list(folder.iterdir()), "nothing is begun there"
    open_store(uri)
    with pytest.raises(StoreError, match=r"another folder than the cluster's.*boot again"):
        open_store(uri, mark=mark)
    folder.rename(folder.with_name("other"))
    with pytest.raises(StoreError, match="Is its file system mounted"):
        open_store(uri, mark=mark)
    assert not folder.exists()


def test_a_mark_stays_and_a_damaged_one_is_made_anew(folder: Path) -> None:
    uri = f"file://{folder}"
    mark = mark_of(open_store(uri))
    assert check_store(uri, size=1 << 20).safe
    assert mark_of(open_store(uri)) == mark
    (folder / ".spotburst/store.json").write_bytes(b"{")
    assert mark_of(open_store(uri)) not in ("", mark)


@pytest.mark.parametrize(
    "look",
    [
        lambda store: store.get("run/old"),
        lambda store: store.get_range("run/old", 0, 1),
        lambda store: next(store.get(info.key) for info in store.list("run/")),
    ],
)
def test_a_store_that_is_back_when_it_is_looked_for_has_lost_nothing(
    folder: Path, look: Callable[[ObjectStore], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{folder}")
    store.put("run/old", b"1")
    away, looks = bare(folder), []

    def back(self: PosixStore) -> bool:
        if not looks:
            folder.rmdir()
            away.rename(folder)
        looks.append(self)
        return True

    monkeypatch.setattr(PosixStore, "is_there", back)
    assert look(store) == b"1"
    assert len(looks) == 1


def test_a_pipe_in_the_place_of_the_mark_is_not_waited_for(folder: Path) -> None:
    """In a folder of many users any of them may have laid it there."""
    (folder / ".spotburst").mkdir(parents=True)
    os.mkfifo(folder / ".spotburst/store.json")
    assert mark_of(open_store(f"file://{folder}", prove=False)) == ""


def test_a_mark_that_may_not_be_read_is_not_taken_for_a_missing_file_system(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{folder}"
    mark = mark_of(open_store(uri))

    def refused(path: str, _: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("job_wrapper.store.regular.open_at_once", refused)
    for known in ("", mark):
        with pytest.raises(StoreRefused, match="Permission denied"):
            open_store(uri, used=True, mark=known)


def test_a_store_that_is_marked_after_it_was_opened_is_known_once_it_is_mounted_anew(folder: Path) -> None:
    """As the followers of a job on several nodes open it while rank 0 proves it."""
    uri = f"file://{folder}"
    folder.mkdir()
    follower = open_store(uri, prove=False)
    open_store(uri)
    with pytest.raises(ObjectMissing):
        follower.get("run/log/00000000.json")
    away = bare(folder)
    with pytest.raises(StoreError, match=MOUNTED):
        follower.get("run/log/00000000.json")
    shutil.copytree(away, folder, dirs_exist_ok=True)
    with pytest.raises(ObjectMissing):
        follower.get("run/log/00000000.json")


def test_what_comes_in_its_place_while_it_is_opened_is_not_learnt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{folder}"
    mark = mark_of(open_store(uri))

    def proved(_: ObjectStore) -> None:
        bare(folder)

    monkeypatch.setattr("job_wrapper.store.probe.ensure_proved", proved)
    with pytest.raises(StoreError, match=MOUNTED):
        open_store(uri, mark=mark)
