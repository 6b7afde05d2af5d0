"""Restoring over what is there: it becomes what the checkpoint holds, extras are set aside, and nothing else is touched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from job_wrapper.errors import Damaged
from job_wrapper.state_restore import SET_ASIDE, offsets, plan, restore
from job_wrapper.store import Item, ItemKind, ObjectStore, Part, open_store
from job_wrapper.store.io_types import Segment
from tests.unit.state_dir.trees import fill, keep, picture


def test_offsets_jump_over_holes() -> None:
    segments = tuple(Segment("p", 0, length, "") for length in (10, 5, 7))
    item = Item("0/x", ItemKind.FILE, segments, {"holes": [[0, 100], [110, 50], [165, 1], [166, 4]]})
    assert [offset for offset, _ in offsets(item)] == [100, 160, 170]


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
