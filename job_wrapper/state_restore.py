"""Restoring state directories from a checkpoint's part.

Everything is built and verified in a folder of its own inside the state directory, and only then moved into place, name by name. So a
damaged checkpoint changes nothing, and a crash between two moves is made good by the next attempt, which restores before it starts the
program. The directory itself stays: it may be a mount point, or the working directory of the job.

Files that the checkpoint does not know are moved to ``.spotburst-set-aside`` in the same directory, never deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from job_wrapper.counted import counted
from job_wrapper.errors import Damaged, UsageError
from job_wrapper.state_dirs import OWN_PREFIX, scan
from job_wrapper.store.io_types import Item, ItemKind, ObjectStore, Part
from job_wrapper.store.paths import short
from job_wrapper.store.read import read_items_into
from job_wrapper.transfer import Progress, Tell, silent

SET_ASIDE = OWN_PREFIX + "set-aside"
_WORK = OWN_PREFIX + "restore-"
_GROUP = 64 << 20
"""Bytes in memory at a time."""
_GROUP_SEGMENTS = 4096
_INDEX = re.compile(r"(?:0|[1-9][0-9]?)\Z")
_MAX_FILE = 1 << 62
"""Bytes."""
_MAX_TIME = 10**27
"""Nanoseconds either way: as many seconds as the system's clock can count."""


def plan(part: Part, count: int) -> dict[int, dict[str, Item]]:
    """Items by state directory and by path in it ("" is the directory itself). Pure.

    Raises ``Damaged`` for a name that could lead outside (absolute, ``..``, below something that is no directory), and ``UsageError``
    when the checkpoint holds more directories than the ``count`` that this program has.
    """
    trees: dict[int, dict[str, Item]] = {}
    for item in part.items:
        head, _, rest = item.name.partition("/")
        pieces = rest.split("/") if rest else []
        bad = (
            not _INDEX.match(head)
            or any(p in ("", ".", "..") for p in pieces)
            or not _can_be_named(item.name)
            or item.name == f"{head}/"
        )
        if bad or (pieces and pieces[0].startswith(OWN_PREFIX)):
            raise Damaged(f"part {part.name}: {short(item.name)} is no path in a state directory")
        _check_attributes(item)
        if int(head) >= count:
            raise UsageError(
                f"the checkpoint holds {counted(int(head) + 1, 'state directory', 'state directories')} or more, but --state-dir was given {counted(count, 'time')}: "
                f"give the same ones in the same order ({', '.join(map(str, part.attributes.get('paths', [])))})"
            )
        trees.setdefault(int(head), {})[rest] = item
    for index, tree in trees.items():
        for path, item in tree.items():
            parents = [str(p) for p in PurePosixPath(path).parents if str(p) != "."] if path else []
            if any(p not in tree or tree[p].kind is not ItemKind.DIRECTORY for p in parents):
                raise Damaged(f"part {part.name}: {index}/{path!s} lies below something that is no directory")
            if item.kind not in (ItemKind.FILE, ItemKind.DIRECTORY, ItemKind.SYMLINK) or (
                not path and item.kind is not ItemKind.DIRECTORY
            ):
                raise Damaged(f"part {part.name}: {item.name!r} is of a kind that no state directory holds")
    return trees


def _can_be_named(text: str) -> bool:
    """Whether a file system of this machine can have it: file names are bytes, and not every string stands for some."""
    try:
        return "\0" not in text and len(os.fsencode(text)) > 0
    except UnicodeError:
        return False


def _check_attributes(item: Item) -> None:
    """Raises ``Damaged`` for what the file system's calls could not be given. Pure."""
    mtime, target = item.attributes.get("mtime_ns"), item.attributes.get("target")
    if isinstance(mtime, int) and abs(mtime) >= _MAX_TIME:
        raise Damaged(f"{short(item.name)}: damaged: its time is {short(mtime)}")
    if item.kind is ItemKind.SYMLINK and not (isinstance(target, str) and target and _can_be_named(target)):
        raise Damaged(f"{short(item.name)}: damaged: a link to {short(target)}")
    if sum(length for _, length in _holes(item)) + item.length >= _MAX_FILE:
        raise Damaged(f"{short(item.name)}: damaged: its holes are {short(item.attributes.get('holes'))}")


def restore(store: ObjectStore, roots: Sequence[Path], part: Part, progress: Progress = silent) -> int:
    """Make the state directories what ``part`` holds; returns the number of files set aside.

    Raises ``Damaged`` or ``UsageError`` with nothing changed, ``StoreError``, and ``OSError`` where the directory can't be written.
    """
    trees = plan(part, len(roots))
    works: dict[int, Path] = {}
    try:
        for index in trees:
            root = roots[index]
            root.mkdir(parents=True, exist_ok=True)
            for left in root.glob(_WORK + "*"):
                _remove(left)
            works[index] = Path(tempfile.mkdtemp(prefix=_WORK, dir=root))
        with progress(sum(item.length for item in part.items)) as tell:
            for index, tree in trees.items():
                _build(store, works[index] / "new", tree, tell)
        return sum(_move_in(index, roots[index], works[index], tree) for index, tree in trees.items())
    finally:
        for work in works.values():
            _remove(work)


def _build(store: ObjectStore, top: Path, tree: dict[str, Item], tell: Tell) -> None:
    """The whole tree in a fresh private folder. Links come last, so that nothing is ever written through one."""
    top.mkdir(mode=0o700)
    by_depth = sorted(tree.items(), key=lambda entry: entry[0].count("/") if entry[0] else -1)
    for path, item in by_depth:
        if path and item.kind is ItemKind.DIRECTORY:
            (top / path).mkdir(mode=0o700)
    files = [(top / path, item) for path, item in by_depth if item.kind is ItemKind.FILE]
    for file, item in files:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(fd, item.length + sum(length for _, length in _holes(item)))
        finally:
            os.close(fd)
    for group in _groups(files):
        read_items_into(store, [(piece, buffer) for _, _, piece, buffer in group])
        for file, offset, _, buffer in group:
            _write(file, offset, buffer)
        tell(sum(len(buffer) for _, _, _, buffer in group))
    for path, item in by_depth:
        if item.kind is ItemKind.SYMLINK:
            (top / path).symlink_to(item.attributes["target"])
    for path, item in reversed(by_depth):
        if path:
            _stamp(top / path, item)


def _holes(item: Item) -> list[tuple[int, int]]:
    try:
        holes = sorted((offset, length) for offset, length in item.attributes.get("holes") or ())
    except (TypeError, ValueError):
        holes = [(-1, 0)]
    if any(type(n) is not int or not 0 <= n < _MAX_FILE for hole in holes for n in hole):
        raise Damaged(f"{short(item.name)}: damaged: its holes are {short(item.attributes.get('holes'))}")
    return holes


def offsets(item: Item) -> Iterator[tuple[int, Item]]:
    """Each segment of a file as an item of its own, with its place in the file: holes are jumped over. Pure."""
    holes, at = _holes(item), 0
    for segment in item.segments:
        while holes and holes[0][0] <= at:
            at += holes.pop(0)[1]
        yield at, Item(item.name, item.kind, (segment,))
        at += segment.length


def _groups(files: Sequence[tuple[Path, Item]]) -> Iterator[list[tuple[Path, int, Item, memoryview]]]:
    group: list[tuple[Path, int, Item, memoryview]] = []
    size = 0
    for path, item in files:
        for offset, piece in offsets(item):
            group.append((path, offset, piece, memoryview(bytearray(piece.length))))
            size += piece.length
            if size >= _GROUP or len(group) >= _GROUP_SEGMENTS:
                yield group
                group, size = [], 0
    if group:
        yield group


def _write(path: Path, offset: int, data: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while data:
            count = os.pwrite(fd, data, offset)
            data, offset = data[count:], offset + count
    finally:
        os.close(fd)


def _stamp(path: Path, item: Item) -> None:
    mode, mtime_ns = item.attributes.get("mode"), item.attributes.get("mtime_ns")
    if isinstance(mode, int) and item.kind is not ItemKind.SYMLINK:
        # A mode without these would keep ourselves out; set-user-id bits of a stored file are not given to a new one.
        path.chmod(mode & 0o1777 | (0o700 if item.kind is ItemKind.DIRECTORY else 0o400))
    if isinstance(mtime_ns, int):
        os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def _move_in(index: int, root: Path, work: Path, tree: dict[str, Item]) -> int:
    aside = _set_aside(index, root, tree)
    new, old = work / "new", work / "old"
    old.mkdir()
    for source in sorted(new.iterdir()):
        target = root / source.name
        if os.path.lexists(target) and (target.is_dir() or source.is_dir()):
            target.rename(old / source.name)
        source.rename(target)
    wanted = {path.partition("/")[0] for path in tree if path}
    for left in sorted(root.iterdir()):
        # Folders whose files were set aside, and sockets and the like.
        if left.name not in wanted and not left.name.startswith(OWN_PREFIX):
            left.rename(old / left.name)
    if "" in tree:
        # The directory itself may belong to someone else.
        with contextlib.suppress(PermissionError):
            _stamp(root, tree[""])
    return aside


def _set_aside(index: int, root: Path, tree: dict[str, Item]) -> int:
    """Move files that the checkpoint does not have out of the way, each time into a folder of its own; returns how many."""
    extras = []
    for found in scan(index, root):
        path = found.name.partition("/")[2]
        known = tree.get(path)
        if path and found.kind is not ItemKind.DIRECTORY and (known is None or known.kind is ItemKind.DIRECTORY):
            extras.append(path)
    if extras:
        (root / SET_ASIDE).mkdir(exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()), dir=root / SET_ASIDE))
        for path in extras:
            target = aside / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (root / path).rename(target)
    return len(extras)


def _remove(path: Path) -> None:
    """Delete a tree of our own, whatever modes its folders have."""
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
