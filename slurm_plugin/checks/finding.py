"""One thing that was looked at, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """How it stands."""

    OK = "ok"
    NOTE = "note"
    """It works, and would work better otherwise."""
    FAULT = "fault"
    UNKNOWN = "unknown"
    """It should be possible to tell, and was not this time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``what`` was looked at; ``detail``: what was found and why that matters; ``fix``: what to do, "" where nothing is to be done."""

    what: str
    state: State
    detail: str
    fix: str = ""


def ok(what: str, detail: str) -> Finding:
    """Well."""
    return Finding(what, State.OK, detail)


def note(what: str, detail: str, fix: str) -> Finding:
    """Worth to know."""
    return Finding(what, State.NOTE, detail, fix)


def fault(what: str, detail: str, fix: str) -> Finding:
    """To be mended."""
    return Finding(what, State.FAULT, detail, fix)


def unknown(what: str, detail: str, fix: str = "") -> Finding:
    """Could not be told."""
    return Finding(what, State.UNKNOWN, detail, fix)


def or_well(found: Iterable[Finding], what: str, detail: str) -> Iterator[Finding]:
    """``found``, and before it that ``what`` is well where nothing of it is a fault or unknown."""
    listed = list(found)
    if all(one.state is State.NOTE for one in listed):
        yield ok(what, detail)
    yield from listed


def exit_code(found: Iterable[Finding]) -> int:
    """0: well; 1: there are faults; 2: none was found, but not everything could be told. Pure."""
    states = {one.state for one in found}
    return 1 if State.FAULT in states else 2 if State.UNKNOWN in states else 0
