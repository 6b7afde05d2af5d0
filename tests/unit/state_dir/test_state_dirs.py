"""State directories through a POSIX store: what is saved comes back, and only what changed is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.errors import CheckpointFailed, CheckpointTooLarge, UsageError
from job_wrapper.state_dirs import MAX_DIRS, NothingToSave, check_paths, save
from job_wrapper.state_restore import restore
from job_wrapper.store import ObjectStore, PartWriter, read_part
from tests.fixtures.unmet import unmet
from tests.unit.state_dir.trees import PREFIX, fill, keep, picture


def test_all_kinds_come_back(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    fill(root)
    before = picture(root)
    times = root.stat()
    os.mkfifo(root / "pipe")  # passed over
    os.utime(root, ns=(times.st_atime_ns, times.st_mtime_ns))
    part = keep(store, root)
    target = tmp_path / "other"
    assert restore(store, [target], part) == 0
    assert picture(target) == before
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(root.stat().st_mode)


def test_several_directories(store: ObjectStore, tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        root.mkdir()
        (root / root.name).write_text(root.name)
    part = keep(store, *roots)
    targets = [tmp_path / "x", tmp_path / "y"]
    restore(store, targets, part)
    assert [p.name for t in targets for p in t.iterdir()] == ["one", "two"]
    with pytest.raises(UsageError, match="--state-dir was given 1 time:"):
        restore(store, targets[:1], part)


def test_files_that_did_not_change_are_not_read(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root)
    base = keep(store, root)
    (root / "a").write_bytes(b"changed")
    (root / "deep" / "er").chmod(0o700)
    read: list[str] = []
    real = PartWriter.add_file

    def spy(self: PartWriter, name: str, path: Path, **more: Any) -> None:
        read.append(name)
        real(self, name, path, **more)

    monkeypatch.setattr(PartWriter, "add_file", spy)
    part = keep(store, root, base=base)
    assert read == ["0/a"]
    restore(store, [root], part)
    assert (root / "a").read_bytes() == b"changed"
    assert len((root / "deep" / "er" / "b").read_bytes()) == 100_000
    assert stat.S_IMODE((root / "deep" / "er").stat().st_mode) == 0o700


def test_old_packs_that_are_mostly_dead_are_not_kept_for_ever(store: ObjectStore, root: Path) -> None:
    (root / "small").write_bytes(b"stays")
    part = None
    for number in range(4):
        (root / "large").write_bytes(os.urandom(100_000 + number))
        part = keep(store, root, base=part)
    assert part is not None
    packs = {s.pack for item in part.items for s in item.segments}
    assert len(packs) <= 2


def test_file_changed_just_before_the_save_is_read_again(store: ObjectStore, root: Path) -> None:
    file = root / "a"
    file.write_bytes(b"one")
    info = file.stat()
    base = read_part(store, save(store, PREFIX, [root]))
    with file.open("r+b") as f:
        f.write(b"two")
    os.utime(file, ns=(info.st_mtime_ns, info.st_mtime_ns))
    part = read_part(store, save(store, PREFIX, [root], base=base))
    restore(store, [root], part)
    assert file.read_bytes() == b"two"


def test_sparse_file_stays_sparse(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    with (root / "sparse").open("wb") as f:
        f.write(b"head")
        f.seek(64 << 20)
        f.write(b"middle")
        f.truncate(100 << 20)
    if (root / "sparse").stat().st_blocks * 512 > 1 << 20:
        unmet("needs a file system with holes")
    part = keep(store, root)
    stored = sum(p.stat().st_size for p in (tmp_path / "store").rglob("*") if p.is_file())
    assert stored < 4 << 20
    restore(store, [tmp_path / "other"], part)
    found = tmp_path / "other" / "sparse"
    assert found.stat().st_size == 100 << 20
    assert found.stat().st_blocks * 512 < 4 << 20
    with found.open("rb") as f:
        assert f.read(4) == b"head"
        f.seek(64 << 20)
        assert f.read(8) == b"middle\0\0"
    again = keep(store, root, base=part)
    assert {i.name: i.attributes.get("holes") for i in again.items} == {
        i.name: i.attributes.get("holes") for i in part.items
    }


def test_too_large_is_refused_before_anything_is_stored(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    (root / "a").write_bytes(b"x" * 1000)
    with pytest.raises(CheckpointTooLarge, match="1000 bytes, more than --max-size 999"):
        keep(store, root, max_size=999)
    assert not [p for p in (tmp_path / "store").rglob("*") if p.is_file()]
    keep(store, root, max_size=1000)


@pytest.mark.parametrize("gone", ["emptied", "missing", "only folders"])
def test_empty_directory_never_replaces_files(store: ObjectStore, root: Path, gone: str) -> None:
    (root / "a").write_bytes(b"x")
    base = keep(store, root)
    (root / "a").unlink()
    if gone == "missing":
        root.rmdir()
    if gone == "only folders":
        (root / "folder").mkdir()
    with pytest.raises(CheckpointFailed, match="is empty, but the last checkpoint holds 1 file of it"):
        keep(store, root, base=base)


def test_directory_that_was_always_empty_is_saved_only_beside_other_parts(store: ObjectStore, root: Path) -> None:
    keep(store, root, base=keep(store, root))
    (root / "folder").mkdir()
    with pytest.raises(NothingToSave):
        keep(store, root, alone=True)
    (root / "folder" / "file").touch()
    keep(store, root, alone=True)


def test_files_that_the_store_has_lost_are_saved_again(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    (root / "a").write_bytes(b"a" * 100_000)
    first = keep(store, root)
    for pack in (tmp_path / "store").rglob("*.pack"):
        pack.unlink()
    second = keep(store, root, base=first)
    (root / "a").write_bytes(b"changed")
    restore(store, [root], second)
    assert (root / "a").read_bytes() == b"a" * 100_000


# Arguments


def test_paths_are_made_and_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert check_paths([f"{tmp_path}/link", f"{tmp_path}/new/deep"]) == (tmp_path / "real", tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for paths, hint in (
        (["relative"], "absolute"),
        (["/"], "directory of its own"),
        ([f"{tmp_path}/file"], "can't be used"),
        ([f"{tmp_path}/a", f"{tmp_path}/a"], "lies in"),
        ([f"{tmp_path}/a", f"{tmp_path}/a/b"], "lies in"),
        ([f"{tmp_path}/a/b", f"{tmp_path}/a"], "lies in"),
        ([f"{tmp_path}/n{i}" for i in range(MAX_DIRS + 1)], "at most 64"),
    ):
        with pytest.raises(UsageError, match=hint):
            check_paths(paths)
