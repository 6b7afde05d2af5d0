"""Putting generated files where they belong: whole or not at all, and never over what somebody else wrote."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_plugin.errors import ConfigError
from slurm_plugin.render import MARK

RECORD = ".spotburst-rendered.json"
"""In a folder of generated files: the digest of each that was written, for kinds of files that can have no comment."""
_HEAD = 5
"""Lines in which the mark is looked for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to be: its text and mode."""

    path: Path
    text: str
    mode: int = 0o644


@dataclass
class Written:
    """What came of it. ``foreign``: left alone, since they are not spotburst's."""

    new: list[Path] = field(default_factory=list)
    changed: list[Path] = field(default_factory=list)
    same: list[Path] = field(default_factory=list)
    foreign: list[Path] = field(default_factory=list)


def digest(text: str) -> str:
    """Of a file's text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def is_ours(there: str, recorded: str | None) -> bool:
    """Whether a file's text is one that was generated: it bears the mark in its first lines, or is what was recorded. Pure."""
    return any(MARK in line for line in there.splitlines()[:_HEAD]) or recorded == digest(there)


def differences(wanted: Iterable[Wanted]) -> list[str]:
    """Unified differences from what is there to what is wanted, one text a file that differs; a file that is not there is all new.

    Raises ``ConfigError`` for a file that can't be read.
    """
    found = []
    for one in wanted:
        there = _read(one.path)
        if there == one.text:
            continue
        old = (there or "").splitlines(keepends=True)
        label = str(one.path) if there is not None else "/dev/null"
        lines = difflib.unified_diff(old, one.text.splitlines(keepends=True), label, f"{one.path} (generated)")
        found.append(
            "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
        )
    return found


def write_all(wanted: Iterable[Wanted], *, force: bool = False, record: Path | None = None) -> Written:
    """Write each file that differs, by a new file in its place. ``force``: also over files that are not spotburst's.

    ``record``: the folder in which digests are kept. Raises ``ConfigError`` for what can't be read or written; files before it stay written.
    """
    result = Written()
    recorded = _recorded(record)
    try:
        for one in wanted:
            key = os.path.relpath(one.path, record) if record is not None else str(one.path)
            _write_one(one, key, recorded, result, force=force)
    finally:
        if record is not None and record.is_dir():
            _replace(record / RECORD, json.dumps(recorded, indent=1, sort_keys=True) + "\n", 0o644)
    return result


def _write_one(one: Wanted, key: str, recorded: dict[str, str], result: Written, *, force: bool) -> None:
    there = _read(one.path)
    known = recorded.get(key)
    # A link leads to what somebody keeps elsewhere.
    foreign = one.path.is_symlink() or (there is not None and there != one.text and not is_ours(there, known))
    if foreign and not force:
        result.foreign.append(one.path)
        return
    recorded[key] = digest(one.text)
    if there == one.text and not one.path.is_symlink():
        _mode(one)
        result.same.append(one.path)
        return
    _replace(one.path, one.text, one.mode)
    (result.new if there is None else result.changed).append(one.path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error


def _mode(one: Wanted) -> None:
    try:
        if one.path.stat().st_mode & 0o7777 != one.mode:
            one.path.chmod(one.mode)
    except OSError as error:
        raise ConfigError(f"{one.path}: its mode can't be set: {error.strerror}") from error


def put(path: Path, text: str, mode: int) -> None:
    """A file in a folder that is there: whole and durable, or not at all. Raises ``OSError``."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _replace(path: Path, text: str, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, text, mode)
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from error


def _recorded(folder: Path | None) -> dict[str, str]:
    if folder is None:
        return {}
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, Mapping) else {}
