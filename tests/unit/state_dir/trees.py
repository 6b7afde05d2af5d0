"""A state directory with all kinds of things in it, how it is saved, and what of it must come back."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from job_wrapper.state_dirs import save
from job_wrapper.store import ObjectStore, Part, read_part

PREFIX = "c/1/main/data/e00000001"
LATER = 10**19
"""A clock that says that no file was changed just now."""


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
