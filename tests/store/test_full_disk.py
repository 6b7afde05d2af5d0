"""A real file system that is full, and system calls that fail: the save raises, the previous commit stands, nothing is left."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.errors import StoreError
from job_wrapper.store import posix
from job_wrapper.store.log import RunLog
from job_wrapper.store.posix import PosixStore
from tests.fixtures.unmet import need_root, unmet
from tests.store.checkpoints import QUICK, RUN, load, save, writer


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    need_root("to mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=False).returncode != 0:
        unmet("can't mount a tmpfs here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    store = PosixStore(small_disk, f"file://{small_disk}")
    claim = RunLog(store, RUN).claim(writer())
    good = {"w": os.urandom(3 << 20)}
    save(claim, 1, good)
    before = {p for p in small_disk.rglob("*") if p.is_file()}
    with pytest.raises(StoreError, match=r"No space left on device: free some space there"):
        save(claim, 2, {"w": os.urandom(9 << 20)})
    assert {p for p in small_disk.rglob("*") if p.is_file()} == before
    assert load(store, claim.entry.summary.commits[-1].manifest) == good
    save(claim, 3, {"w": os.urandom(1 << 20)})


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "link", "rename"])
def test_a_system_call_that_fails(call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)

            def fail(*args: Any, **kwargs: Any) -> Any:
                raise OSError(code, os.strerror(code))

            return fail if name == call else real

    store = PosixStore(tmp_path, f"file://{tmp_path}")
    claim = RunLog(store, RUN, patience=QUICK).claim(writer())
    save(claim, 1, {"w": b"1"})
    monkeypatch.setattr(posix, "os", Failing())
    with pytest.raises(StoreError, match=os.strerror(code)):
        save(claim, 2, {"w": b"2"})
    monkeypatch.setattr(posix, "os", os)
    assert [c.step for c in claim.entry.summary.commits] == [1]
    save(claim, 3, {"w": b"3"})
    assert load(store, claim.entry.summary.commits[-1].manifest) == {"w": b"3"}
    assert list(tmp_path.rglob("*~*")) == []


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLinks:
        def __getattr__(self, name: str) -> Any:
            if name == "link":

                def refuse(*args: Any) -> None:
                    raise OSError(errno.EPERM, "Operation not permitted")

                return refuse
            return getattr(os, name)

    monkeypatch.setattr(posix, "os", NoLinks())
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    with pytest.raises(StoreError, match=r"can't make hard links.*another file system"):
        store.put_if_absent("x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_nfs_made_but_denies_is_known_by_its_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request whose answer was lost, and answers "exists" to its own work."""

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            if name == "link":

                def link(source: str, target: str) -> None:
                    os.link(source, target)
                    raise FileExistsError(errno.EEXIST, "File exists")

                return link
            return getattr(os, name)

    monkeypatch.setattr(posix, "os", Forgetful())
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    assert store.put_if_absent("x", b"1") is posix.Put.CREATED
