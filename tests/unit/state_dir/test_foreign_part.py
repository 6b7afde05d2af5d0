"""A part of state directories that nobody here wrote: names and attributes that lead elsewhere, or that no file system can take.

Either the directory becomes what the part says, or nothing in it changes and one typed error names what is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from job_wrapper.errors import Damaged, SpotburstError, UsageError
from job_wrapper.state_dirs import save
from job_wrapper.state_restore import restore
from job_wrapper.store.checksum import checksum
from job_wrapper.store.io_types import Item, ItemKind, Part, Segment
from job_wrapper.store.read import read_part
from tests.store.faulty import MemoryStore

PACK = "c/1/main/data/e00000001/x.pack"
TOP = Item("0", ItemKind.DIRECTORY, (), {"mode": 0o755})


def stored() -> MemoryStore:
    store = MemoryStore()
    store.put(PACK, b"12345678")
    return store


def item(name: str, kind: ItemKind = ItemKind.FILE, **attributes: Any) -> Item:
    content = (Segment(PACK, 0, 8, checksum(b"12345678")),) if kind is ItemKind.FILE else ()
    return Item(name, kind, content, attributes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "outer" / "root"
    root.mkdir(parents=True)
    (root / "keep").write_bytes(b"kept")
    return root


BAD: dict[str, Item] = {
    "absolute": item("/etc/passwd"),
    "absolute inside": item("0//etc/passwd"),
    "up": item("0/../outside"),
    "up at last": item("0/a/.."),
    "here": item("0/./a"),
    "NUL": item("0/a\0b"),
    "no such character": item("0/\ud800"),
    "index of five thousand digits": item("9" * 5000 + "/a"),
    "index in another script": item("\u0663/a"),
    "index that is no number": item("\u00b2/a"),
    "index with a zero before it": item("00/a"),
    "no index": item("/a"),
    "negative index": item("-1/a"),
    "our own name": item("0/.spotburst-restore-x/a"),
    "time beyond all clocks": item("0/a", mtime_ns=10**40),
    "time before all clocks": item("0/a", mtime_ns=-(10**40)),
    "holes larger than any file": item("0/a", holes=[[0, 1 << 70]]),
    "holes that are together": item("0/a", holes=[[0, 1 << 61], [1 << 61, 1 << 61]]),
    "infinite hole": item("0/a", holes=[[float("inf"), 1]]),
    "negative hole": item("0/a", holes=[[-1, 1]]),
    "holes of text": item("0/a", holes=[["0", "1"]]),
    "one hole": item("0/a", holes=7),
    "half a hole": item("0/a", holes=[[1]]),
    "link to nothing": item("0/a", ItemKind.SYMLINK),
    "link to the empty name": item("0/a", ItemKind.SYMLINK, target=""),
    "link to a NUL": item("0/a", ItemKind.SYMLINK, target="a\0b"),
    "link to no character": item("0/a", ItemKind.SYMLINK, target="\ud800"),
    "link to a number": item("0/a", ItemKind.SYMLINK, target=7),
    "tensor": item("0/a", ItemKind.TENSOR),
    "file as the directory": item("0"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_laid_out_is_named_and_changes_nothing(what: str, root: Path) -> None:
    part = Part("state-dir", (TOP, item("0/good"), BAD[what]) if BAD[what].name != "0" else (BAD[what],))
    with pytest.raises((Damaged, UsageError)) as caught:
        restore(stored(), [root], part)
    assert len(str(caught.value)) < 500
    assert [p.name for p in root.parent.iterdir()] == ["root"] and [p.name for p in root.iterdir()] == ["keep"]


@pytest.mark.parametrize(
    "one", [item("0/" + "x" * 300), item("0/" + "x" * 5000), item("0/a", ItemKind.SYMLINK, target="x" * 5000)]
)
def test_what_is_too_long_for_this_file_system_changes_nothing(one: Item, root: Path) -> None:
    """The wrapper tells which name it is, and the system's reason."""
    with pytest.raises(OSError, match="File name too long"):
        restore(stored(), [root], Part("state-dir", (TOP, one)))
    assert [p.name for p in root.iterdir()] == ["keep"]


@pytest.mark.parametrize("below", ["link", "link/deep", "file"])
def test_nothing_goes_through_a_link_of_the_part(below: str, root: Path) -> None:
    outside = root.parent.parent / "elsewhere"
    outside.mkdir()
    link = item("0/link", ItemKind.SYMLINK, target=str(outside))
    for order in ((TOP, link, item("0/file"), item(f"0/{below}/x")), (TOP, item(f"0/{below}/x"), link, item("0/file"))):
        with pytest.raises(Damaged, match="lies below something that is no directory"):
            restore(stored(), [root], Part("state-dir", order))
    # A link that only points there is the program's own business, and is made; nothing is written to where it points.
    restore(stored(), [root], Part("state-dir", (TOP, link)))
    assert (root / "link").readlink() == outside and list(outside.iterdir()) == []


def test_names_in_both_normal_forms_and_bytes_that_are_no_text_are_names_of_their_own(
    root: Path, tmp_path: Path
) -> None:
    names = [b"\xc3\xa9", b"e\xcc\x81", b"\xff\xfe", b" ", b"-rf *", b"a\nb", b"\xe2\x80\xae"]
    store, source = MemoryStore(), tmp_path / "source"
    source.mkdir()
    for number, name in enumerate(names):
        with open(bytes(source) + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write(bytes([number]))
    part = read_part(store, save(store, "c/1/main/data/e00000001", [source]))
    restore(store, [root], part)
    assert {bytes(p).rpartition(b"/")[2]: p.read_bytes() for p in root.iterdir() if p.is_file()} == {
        name: bytes([number]) for number, name in enumerate(names)
    }


pieces = st.sampled_from(
    ["0", "1", "a", "b", "..", ".", "", "\0", "\u00e9", "e\u0301", "\ud83d", ".spotburst-x", "x" * 256]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
attributes = st.dictionaries(st.sampled_from(["mode", "mtime_ns", "target", "holes", "size"]), values, max_size=4)
items = st.builds(
    lambda names, kind, some: Item("/".join(names), kind, item("x", kind).segments, some),
    st.lists(pieces, min_size=1, max_size=4),
    st.sampled_from(list(ItemKind)),
    attributes,
)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.lists(items, max_size=4, unique_by=lambda one: one.name))
def test_any_part_is_laid_out_or_refused(tmp_path_factory: pytest.TempPathFactory, some: list[Item]) -> None:
    outer = tmp_path_factory.mktemp("outer")
    root = outer / "root"
    root.mkdir()
    (root / "keep").write_bytes(b"kept")
    try:
        restore(stored(), [root], Part("state-dir", (TOP, *some)))
    except (SpotburstError, OSError):
        assert [p.name for p in root.iterdir()] == ["keep"]
    assert [p.name for p in outer.iterdir()] == ["root"]
    assert [p.read_bytes() for p in outer.rglob("keep")] == [b"kept"]
