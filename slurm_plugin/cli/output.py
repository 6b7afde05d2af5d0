"""How the commands print: tables, times, sizes, JSON. Nothing is asked or decided here."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNKNOWN = "-"
_WIDE = 1000
"""Columns where there is no terminal: a line is never broken for a program that reads it."""

_STYLES = {
    "running": "green",
    "finished": "green",
    "kept": "green",
    "verified": "green",
    "ok": "green",
    "lost": "red",
    "damaged": "red",
    "FAIL": "bold red",
}


def coloured(stream: TextIO) -> bool:
    """Whether colours may be written to it: a terminal that can show them, and nobody has said NO_COLOR (no-color.org)."""
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False  # it is closed


def console() -> Console:
    """Standard output: colours and the terminal's width only where there is a terminal. FORCE_COLOR and the like make no file a terminal."""
    terminal = _is_terminal(sys.stdout)
    return Console(
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
        force_terminal=terminal,
        force_interactive=False,
        width=None if terminal else _WIDE,
        color_system="auto" if coloured(sys.stdout) else None,
    )


def printable(text: str) -> str:
    """One line without what could steer a terminal: names, reasons and what a log holds come from others."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def cell(value: Any) -> Text:
    """Anything as a cell."""
    safe = printable(UNKNOWN if value is None or value == "" else str(value))
    return Text(safe, style=_STYLES.get(safe, ""))


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table. Numbers stand to the right. On a terminal too narrow for it, each row becomes a few lines of its own."""
    listed = [list(row) for row in rows]
    out = console()
    columns = zip(headings, *(map(str, map(cell, row)) for row in listed), strict=True)
    needed = sum(max(map(len, column)) + 2 for column in columns) - 2
    if out.is_terminal and needed > out.width:
        for row in listed:
            out.print(Text(f"{headings[0]} ", style="bold") + cell(row[0]))
            facts((f"  {h.lower()}", value) for h, value in zip(headings[1:], row[1:], strict=True))
        return
    made = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, heading in enumerate(headings):
        values = [row[index] for row in listed if row[index] is not None]
        numbers = bool(values) and all(isinstance(v, int | float) for v in values)
        made.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in listed:
        made.add_row(*map(cell, row))
    if out.is_terminal:
        out.print(made, soft_wrap=False)
        return
    with out.capture() as captured:
        out.print(made, soft_wrap=False)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one pair a line, the values beneath each other."""
    listed = [(name, value) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        console().print(Text(f"{name:<{width}}  ", style="bold") + cell(value))


def lines(title: str, rows: Iterable[str]) -> None:
    """A heading with indented lines below it; nothing where there are none."""
    listed = list(rows)
    if listed:
        console().print(Text(title, style="bold"))
    for row in listed:
        console().print(Text("  ") + cell(row))


def as_json(value: Any) -> None:
    """One JSON document. Letters stand for themselves; what could steer a terminal is written by its number."""
    text = json.dumps(value, indent=2, sort_keys=True, default=_plain, ensure_ascii=False)
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value)


def moment(when: float | None, *, tenths: bool = False) -> str | None:
    """Unix seconds in the local time zone, to the second or the tenth (cut, not rounded, so that both agree)."""
    if not when:
        return None
    try:
        shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    except (OverflowError, OSError, ValueError):  # of a clock that was wrong by ages
        return f"{when:g} s since 1970"
    return shown + (f".{int(when * 10) % 10}" if tenths else "")


def duration(seconds: float | None) -> str | None:
    """``0.8 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds is None:
        return None
    whole = round(seconds)
    if abs(seconds) < 9.95:
        return f"{seconds:.1f} s"
    for unit, size, below, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def money(amount: float | None, currency: str) -> str | None:
    """``1.23 USD``; small sums with more digits."""
    if amount is None:
        return None
    return f"{amount:.2f} {currency}" if amount >= 0.1 else f"{amount:.2g} {currency}"


def size(count: int | None) -> str | None:
    """Bytes in powers of 1024, three digits: ``512 B``, ``1.21 GiB``."""
    if count is None:
        return None
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError
