"""State directories through a POSIX store: what is saved comes back, and nothing else is touched."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from job_wrapper.errors import CheckpointFailed, CheckpointTooLarge, Damaged, UsageError
from job_wrapper.state_dirs import MAX_DIRS, NothingToSave, check_paths, save
from job_wrapper.state_restore import SET_ASIDE, offsets, plan, restore
from job_wrapper.store import Item, ItemKind, ObjectStore, Part, PartWriter, open_store, read_part
from job_wrapper.store.io_types import Segment
from tests.fixtures.unmet import unmet

PREFIX = "c/1/main/data/e00000001"
LATER = 10**19
"""A clock that says that no file was changed just now."""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path / 'store'}", prove=False, create=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def keep(store: ObjectStore, *roots: Path, base: Part | None = None, **more: Any) -> Part:
    return read_part(store, save(store, PREFIX, roots, base=base, clock_ns=lambda: LATER, **more))


def picture(root: Path) -> dict[str, tuple[Any, ...]]:
    """All that must be the same: kinds, modes, times, contents, targets."""
    found: dict[str, tuple[Any, ...]] = {}
    for folder, names, files in os.walk(root):
        for name in sorted(names + files):
            path = Path(folder, name)
            info = path.lstat()
            key = str(path.relative_to(root))
            if stat.S_ISLNK(info.st_mode):
                found[key] = ("link", str(path.readlink()), info.st_mtime_ns)
            elif stat.S_ISDIR(info.st_mode):
                found[key] = ("dir", stat.S_IMODE(info.st_mode), info.st_mtime_ns)
            else:
                found[key] = ("file", stat.S_IMODE(info.st_mode), info.st_mtime_ns, path.read_bytes())
    return found


def fill(root: Path) -> None:
    (root / "a").write_bytes(b"hello" * 100)
    (root / "empty").touch()
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "b").write_bytes(os.urandom(100_000))
    (root / "deep" / "er" / "b").chmod(0o640)
    (root / "hollow").mkdir(mode=0o750)
    (root / "link").symlink_to("deep/er/b")
    (root / "out").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("../../nowhere")
    (root / os.fsdecode(b"name-\xff\xfe")).write_bytes(b"not utf-8" * 100)
    (root / 'new\nline = "x"').write_bytes(b"odd" * 100)
    os.utime(root / "a", ns=(1, 1_234_567_890_123_456_789))
    os.utime(root / "deep", ns=(1, 1_000_000_000_000_000_000))


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
    with pytest.raises(UsageError, match="--state-dir was given 1 times"):
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


def test_offsets_jump_over_holes() -> None:
    segments = tuple(Segment("p", 0, length, "") for length in (10, 5, 7))
    item = Item("0/x", ItemKind.FILE, segments, {"holes": [[0, 100], [110, 50], [165, 1], [166, 4]]})
    assert [offset for offset, _ in offsets(item)] == [100, 160, 170]


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
    with pytest.raises(CheckpointFailed, match="is empty, but the last checkpoint holds 1 files"):
        keep(store, root, base=base)


def test_directory_that_was_always_empty_is_saved_only_beside_other_parts(store: ObjectStore, root: Path) -> None:
    keep(store, root, base=keep(store, root))
    (root / "folder").mkdir()
    with pytest.raises(NothingToSave):
        keep(store, root, alone=True)
    (root / "folder" / "file").touch()
    keep(store, root, alone=True)


# Restoring over what is there


def test_existing_content_becomes_the_checkpoints_and_extras_are_kept_aside(
    store: ObjectStore, root: Path, tmp_path: Path
) -> None:
    fill(root)
    before = picture(root)
    part = keep(store, root)
    inode = root.stat().st_ino
    # The lost attempt went on after the checkpoint, in every way.
    (root / "a").write_bytes(b"newer")
    (root / "empty").unlink()
    (root / "empty").mkdir()
    (root / "empty" / "inner").write_bytes(b"extra 1")
    (root / "link").unlink()
    (root / "link").write_bytes(b"was a link")
    (root / "hollow").rmdir()
    (root / "hollow").symlink_to("/tmp")
    (root / "new").mkdir()
    (root / "new" / "file").write_bytes(b"extra 2")
    (root / "deep" / "extra").write_bytes(b"extra 3")
    assert restore(store, [root], part) == 4
    aside = next((root / SET_ASIDE).iterdir())
    assert {str(p.relative_to(aside)) for p in aside.rglob("*") if not p.is_dir() or p.is_symlink()} == {
        "empty/inner",
        "new/file",
        "deep/extra",
        "hollow",
    }
    after = {k: v for k, v in picture(root).items() if not k.startswith(SET_ASIDE)}
    assert after == before
    assert root.stat().st_ino == inode, "the directory itself stays: it may be a mount or somebody's working directory"
    # What was set aside is never part of a checkpoint.
    assert not [i.name for i in keep(store, root).items if "spotburst" in i.name]


def test_damaged_checkpoint_changes_nothing(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    fill(root)
    part = keep(store, root)
    (root / "a").write_bytes(b"mine")
    before = picture(root)
    pack = next((tmp_path / "store").rglob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    with pytest.raises(Damaged):
        restore(store, [root], part)
    assert picture(root) == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", range(0, 24, 2))
def test_restore_that_is_cut_short_is_made_good_by_the_next(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    fill(root)
    before = picture(root)
    part = keep(store, root)
    (root / "a").write_bytes(b"newer")
    (root / "extra").write_bytes(b"extra")
    (root / "hollow").rmdir()
    calls = 0
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Killed
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        # Nothing is cleaned up by a process that is killed.
        patch.setattr("job_wrapper.state_restore._remove", lambda path: None)
        with contextlib.suppress(Killed):
            restore(store, [root], part)
    restore(store, [root], part)
    left = {k: v for k, v in picture(root).items() if not k.startswith(SET_ASIDE)}
    assert left == before
    assert [p.read_bytes() for p in (root / SET_ASIDE).rglob("extra")] == [b"extra"]


@pytest.mark.parametrize(
    "name",
    ["0/../x", "0/a/../../x", "/etc/x", "0//x", "0/", "x/a", "-1/a", "0/./a", "0/a\0b", "0/.spotburst-x/a", "", ".."],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    part = Part("state-dir", (Item("0", ItemKind.DIRECTORY), Item(name, ItemKind.FILE)))
    with pytest.raises(Damaged):
        plan(part, 1)


@pytest.mark.parametrize("kind", [ItemKind.SYMLINK, ItemKind.FILE, None])
def test_nothing_is_written_below_a_link_or_a_file(
    store: ObjectStore, root: Path, tmp_path: Path, kind: ItemKind | None
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    above = [] if kind is None else [Item("0/way", kind, (), {"target": str(outside)})]
    part = Part("state-dir", (Item("0", ItemKind.DIRECTORY), *above, Item("0/way/x", ItemKind.FILE)))
    with pytest.raises(Damaged):
        restore(store, [root], part)
    assert not list(outside.iterdir())
    assert not list(root.iterdir())


def test_link_in_the_way_on_disk_is_not_followed(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    (root / "way").mkdir()
    (root / "way" / "x").write_bytes(b"mine")
    part = keep(store, root)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"precious")
    (root / "way" / "x").unlink()
    (root / "way").rmdir()
    (root / "way").symlink_to(outside)
    restore(store, [root], part)
    assert (outside / "x").read_bytes() == b"precious"
    assert not (root / "way").is_symlink()
    assert (root / "way" / "x").read_bytes() == b"mine"


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


# Any tree

_names = st.text(st.characters(blacklist_characters="/\0", max_codepoint=0x2FF), min_size=1, max_size=8).filter(
    lambda n: n not in (".", "..") and not n.startswith(".spotburst-")
)
_trees = st.recursive(
    st.binary(max_size=2000) | st.builds(lambda t: ("link", t), _names),
    lambda children: st.dictionaries(_names, children, max_size=4),
    max_leaves=12,
)


def write(at: Path, tree: Any) -> None:
    if isinstance(tree, dict):
        at.mkdir(exist_ok=True)
        for name, child in tree.items():
            write(at / name, child)
    elif isinstance(tree, tuple):
        at.symlink_to(tree[1])
    else:
        at.write_bytes(tree)


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield lambda: tmp_path_factory.mktemp("any")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    saved=st.dictionaries(_names, _trees, min_size=1, max_size=4),
    there=st.dictionaries(_names, _trees, max_size=4),
)
def test_any_tree_comes_back_over_any_other(fresh: Any, saved: dict[str, Any], there: dict[str, Any]) -> None:
    top = fresh()
    (top / "store").mkdir()
    store = open_store(f"file://{top / 'store'}", prove=False, create=True)
    write(top / "saved", saved)
    write(top / "there", there)
    before = picture(top / "saved")
    kept = {
        k: v for k, v in picture(top / "there").items() if v[0] != "dir" and (k not in before or before[k][0] == "dir")
    }
    part = keep(store, top / "saved")
    assert restore(store, [top / "there"], part) == len(kept)
    after = picture(top / "there")
    assert {k: v for k, v in after.items() if not k.startswith(SET_ASIDE)} == before


def test_files_that_the_store_has_lost_are_saved_again(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    (root / "a").write_bytes(b"a" * 100_000)
    first = keep(store, root)
    for pack in (tmp_path / "store").rglob("*.pack"):
        pack.unlink()
    second = keep(store, root, base=first)
    (root / "a").write_bytes(b"changed")
    restore(store, [root], second)
    assert (root / "a").read_bytes() == b"a" * 100_000
