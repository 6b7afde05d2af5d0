"""State directories: the files that a program writes, saved as one part of a checkpoint. Restoring is `state_restore`'s.

An item is named by the directory's place in the list and the path in it: ``0`` is the first directory itself, ``0/weights.bin`` a file of
it. Modes, times and symlinks are kept; sockets, pipes and devices are passed over. Names that begin with ``.spotburst-`` at the top of
a state directory are ours and are never part of a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job_wrapper.counted import counted
from job_wrapper.errors import CheckpointFailed, CheckpointTooLarge, UsageError
from job_wrapper.store.io_types import Item, ItemKind, ObjectRef, ObjectStore, Part
from job_wrapper.store.write import BaseGoneError, PartWriter, find_holes
from job_wrapper.transfer import Progress, silent
from job_wrapper.within import Within

PART = "state-dir"
"""Name of the part."""
MAX_DIRS = 64
OWN_PREFIX = ".spotburst-"
_RACY_NS = 2_000_000_000
"""A file changed this shortly before it was read may change again within one tick of the file system's clock: read it again next time."""


class NothingToSave(CheckpointFailed):
    """The state directories hold no files: no checkpoint is made of that. ``lost``: the last checkpoint had some."""

    reason = "NothingToSave"

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


def check_paths(paths: Sequence[str]) -> tuple[Path, ...]:
    """The state directories as real paths, made if they are missing. Raises ``UsageError`` that names what is wrong."""
    if len(paths) > MAX_DIRS:
        raise UsageError(f"--state-dir: {len(paths)} directories given, at most {MAX_DIRS} are allowed")
    real: list[Path] = []
    for text in paths:
        if not text.startswith("/"):
            raise UsageError(f"--state-dir {text}: write an absolute path, such as {Path.cwd() / text}")
        try:
            path = Path(text).resolve()
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"--state-dir {text}: can't be used as a directory: {reason}") from None
        if path == Path("/") or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise UsageError(f"--state-dir {text}: must be a directory of its own that can be read and written")
        for other in real:
            if path == other or path in other.parents or other in path.parents:
                raise UsageError(f"--state-dir {text}: lies in, or holds, {other}, which is a state directory too")
        real.append(path)
    return tuple(real)


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in a state directory, as the scan saw it."""

    name: str
    path: str
    kind: ItemKind
    info: os.stat_result
    within: Within
    """The state directory."""

    def attributes(self, now_ns: int) -> dict[str, Any]:
        """What the item keeps of it."""
        info = self.info
        kept: dict[str, Any] = {"mode": stat.S_IMODE(info.st_mode), "mtime_ns": info.st_mtime_ns}
        if self.kind is ItemKind.SYMLINK:
            kept["target"] = str(Path(self.path).readlink())
        if self.kind is ItemKind.FILE:
            kept |= {"size": info.st_size, "ino": info.st_ino, "ctime_ns": info.st_ctime_ns}
            if max(info.st_mtime_ns, info.st_ctime_ns) > now_ns - _RACY_NS:
                kept["racy"] = True
        return kept


def scan(index: int, root: Path) -> Iterator[Found]:
    """Everything below one state directory, the directory itself first, parents before what is in them.

    What vanishes meanwhile is passed over. Raises ``CheckpointFailed`` naming what can't be read.
    """
    try:
        within = Within(str(root))
        yield Found(str(index), str(root), ItemKind.DIRECTORY, root.stat(), within)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointFailed(f"{root}: can't be read: {error.strerror}") from error
    folders = [(str(root), str(index))]
    while folders:
        folder, name = folders.pop()
        try:
            entries = _listed(within, folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointFailed(f"{folder}: can't be read: {error.strerror}") from error
        for entry, info in entries:
            if name == str(index) and entry.startswith(OWN_PREFIX):
                continue
            kind = _KINDS.get(stat.S_IFMT(info.st_mode))
            if kind is None:
                continue
            found = Found(f"{name}/{entry}", f"{folder}/{entry}", kind, info, within)
            if kind is ItemKind.DIRECTORY:
                folders.append((found.path, found.name))
            yield found


def _listed(within: Within, folder: str) -> list[tuple[str, os.stat_result]]:
    """What is in a folder, by name. Raises ``OSError``, also where a link took its place."""
    found = []
    fd = within.folder(folder)
    try:
        with os.scandir(fd) as listing:
            for entry in listing:
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
    finally:
        os.close(fd)
    found.sort(key=lambda one: one[0])
    return found


_KINDS = {stat.S_IFREG: ItemKind.FILE, stat.S_IFDIR: ItemKind.DIRECTORY, stat.S_IFLNK: ItemKind.SYMLINK}


def unchanged(item: Item | None, found: Found) -> bool:
    """Whether a file is surely the one that ``item`` was made from: same size, times and inode, and not changed just then. Pure.

    A program that writes through mmap must msync before it acknowledges: until then the file system does not move its times.
    """
    if item is None or item.kind is not ItemKind.FILE or item.attributes.get("racy"):
        return False
    a, info = item.attributes, found.info
    return (a.get("size"), a.get("mtime_ns"), a.get("ctime_ns"), a.get("ino")) == (
        info.st_size,
        info.st_mtime_ns,
        info.st_ctime_ns,
        info.st_ino,
    )


def save(
    store: ObjectStore,
    data_prefix: str,
    roots: Sequence[Path],
    *,
    base: Part | None = None,
    max_size: int = 1 << 40,
    alone: bool = False,
    clock_ns: Callable[[], int] = time.time_ns,
    progress: Progress = silent,
) -> ObjectRef:
    """Store the state directories as a part; files that are those of ``base`` (the last commit's part) are not even read.

    Raises ``CheckpointTooLarge`` before anything is stored if the files have more than ``max_size`` bytes, ``NothingToSave`` if a
    directory that had files is empty now (or all are, where the part is to stand ``alone`` in its checkpoint), ``CheckpointFailed`` if a
    file can't be read, and the store's errors.
    """
    found = [list(scan(index, root)) for index, root in enumerate(roots)]
    _refuse_too_large(found, roots, max_size)
    _refuse_empty(found, roots, base, alone)
    try:
        return _write(store, data_prefix, roots, found, base, clock_ns, progress)
    except BaseGoneError:
        return _write(store, data_prefix, roots, found, None, clock_ns, progress)


def _write(
    store: ObjectStore,
    data_prefix: str,
    roots: Sequence[Path],
    found: Sequence[Sequence[Found]],
    base: Part | None,
    clock_ns: Callable[[], int],
    progress: Progress,
) -> ObjectRef:
    old = {item.name: item for item in base.items} if base is not None else {}
    size = sum(f.info.st_size for some in found for f in some if f.kind is ItemKind.FILE)
    with progress(size) as tell, PartWriter(store, data_prefix, PART, base=base, tell=tell) as writer:
        for one in (f for some in found for f in some):
            if _add(writer, one, old.get(one.name), clock_ns()):
                tell(one.info.st_size)
        return writer.finish({"paths": [str(root) for root in roots]})


def _add(writer: PartWriter, found: Found, old: Item | None, now_ns: int) -> bool:
    """Whether it is a file that is kept from ``base``, and so not read."""
    try:
        attributes = found.attributes(now_ns)
        if found.kind is not ItemKind.FILE:
            writer.add_entry(found.name, found.kind, attributes)
            return False
        if old is not None and unchanged(old, found):
            kept = {**attributes, "holes": old.attributes["holes"]} if "holes" in old.attributes else attributes
            if writer.add_unchanged(Item(found.name, found.kind, old.segments, kept)):
                return True
        path = Path(found.path)
        if found.info.st_blocks * 512 < found.info.st_size:
            attributes["holes"] = find_holes(path, found.within.file)
        writer.add_file(found.name, path, attributes=attributes, opener=found.within.file)
    except FileNotFoundError:
        return False  # gone since the scan
    except OSError as error:
        raise CheckpointFailed(f"{found.path}: can't be read: {error.strerror}") from error
    except CheckpointFailed:
        if os.path.lexists(found.path):
            raise
    return False


def _refuse_too_large(found: Sequence[Sequence[Found]], roots: Sequence[Path], max_size: int) -> None:
    sizes = [sum(f.info.st_size for f in some if f.kind is ItemKind.FILE) for some in found]
    if sum(sizes) > max_size:
        listed = ", ".join(f"{root}: {size} bytes" for root, size in zip(roots, sizes, strict=True))
        raise CheckpointTooLarge(
            f"the state directories hold {sum(sizes)} bytes, more than --max-size {max_size} ({listed}). "
            "Move what need not survive elsewhere, or raise --max-size"
        )


def _refuse_empty(found: Sequence[Sequence[Found]], roots: Sequence[Path], base: Part | None, alone: bool) -> None:
    """An empty directory (lost mount, cleaned scratch) never replaces files; and without any file there is nothing to go on from."""
    for index, had in count_files(base).items():
        if index < len(roots) and not any(f.kind is not ItemKind.DIRECTORY for f in found[index]):
            raise NothingToSave(
                f"state directory {roots[index]} is empty, but the last checkpoint holds {counted(had, 'file')} of it: that checkpoint is kept. "
                "If they were meant to go, leave any file there",
                lost=True,
            )
    if alone and not any(f.kind is not ItemKind.DIRECTORY for some in found for f in some):
        raise NothingToSave("the state directories hold no files yet", lost=False)


def count_files(part: Part | None) -> dict[int, int]:
    """Files and links in a part by state directory; directories without any are left out. Pure."""
    counts: dict[int, int] = {}
    for item in part.items if part is not None else ():
        head, _, rest = item.name.partition("/")
        if rest and item.kind is not ItemKind.DIRECTORY and head.isdecimal():
            counts[int(head)] = counts.get(int(head), 0) + 1
    return counts
