"""Man pages, made from what ``--help`` shows: one of ``spotburst`` and one of each command, such as spotburst-plan(1)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from job_wrapper.counted import counted
from job_wrapper.errors import UsageError
from slurm_plugin.cli.examples import EXAMPLES, Example
from slurm_plugin.cli.exits import CODES

_SPECIAL = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}


@dataclass(frozen=True, slots=True)
class Page:
    """``path``: the command's words. ``options`` and ``commands``: as they are written, and what each does."""

    path: tuple[str, ...]
    summary: str
    usage: str
    text: str = ""
    options: list[tuple[str, str]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``spotburst-store-check``."""
        return "-".join(self.path)

    @property
    def examples(self) -> tuple[Example, ...]:
        """Those of its help."""
        return EXAMPLES.get(" ".join(self.path[1:]), ())


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write them, such as /usr/local/share/man/man1.")
    ],
) -> None:
    """Write the man pages of spotburst and of each command into a folder.

    Those that another version wrote there for commands that this one has not are taken away.
    """
    from slurm_plugin.cli.app import everything

    found = list(pages(typer.main.get_command(everything())))
    try:
        changed = _write(folder, {f"{page.name}.1": roff(page, found).encode("ascii") for page in found})
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: can't be written: {error.strerror}") from error
    print(f"{counted(len(found), 'page')} in {folder}, {changed} changed")


def _write(folder: Path, texts: Mapping[str, bytes]) -> int:
    """How many files had to be changed."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {path.name: path.read_bytes() for path in folder.glob("spotburst*.1")}
    former = [name for name in there.keys() - texts.keys() if there[name].startswith(b'.TH "SPOTBURST')]
    for name in former:
        (folder / name).unlink(missing_ok=True)
    written = [name for name, text in texts.items() if there.get(name) != text]
    for name in written:
        (folder / name).write_bytes(texts[name])
    return len(former) + len(written)


def pages(top: Any, path: tuple[str, ...] = ("spotburst",), above: Any = None) -> Iterator[Page]:
    """Of a command of click's and of all below it."""
    context = top.make_context(path[-1], [], parent=above, resilient_parsing=True)
    if (parsed := _elsewhere(path)) is not None:
        yield parsed
        return
    listed = []
    below = [(name, top.get_command(context, name)) for name in getattr(top, "list_commands", lambda _: [])(context)]
    for name, child in below:
        if child is not None and not child.hidden:
            listed.append((name, child.get_short_help_str(300)))
    records = [record for param in top.get_params(context) if (record := param.get_help_record(context)) is not None]
    usage = " ".join([*path, *top.collect_usage_pieces(context)])
    yield Page(path, _first_sentence(top.help), usage, _rest(top.help), records, listed)
    for name, child in below:
        if child is not None and not child.hidden:
            yield from pages(child, (*path, name), context)


def _elsewhere(path: tuple[str, ...]) -> Page | None:
    """Of the commands that read their arguments themselves, since they must start fast."""
    parser: argparse.ArgumentParser
    if path[1:] == ("run",):
        from job_wrapper.run.options import parser as made

        parser = made()
    elif path[1:] == ("agent",):
        from job_wrapper.agent import parser as made

        parser = made()
    elif path[1:] == ("progress",):
        from job_wrapper.tell import USAGE

        return Page(path, "Tell the wrapper how far the program is.", USAGE)
    else:
        return None
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    options = [
        (_flags(action), (action.help or "").replace("%%", "%"))
        for action in parser._actions
        if action.help != argparse.SUPPRESS
    ]
    return Page(path, parser.description or "", usage, parser.epilog or "", options)


def _flags(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    if action.choices is not None:
        return f"{names} {'|'.join(map(str, action.choices))}"
    return f"{names} {action.metavar or action.dest.upper()}".strip()


def _first_sentence(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").split("\n\n")[0]).strip()


def _rest(text: str | None) -> str:
    return "\n\n".join((text or "").split("\n\n")[1:]).strip()


# As roff


def escaped(text: str) -> str:
    """Text that roff takes for nothing but text, in ASCII."""
    plain = "".join(_SPECIAL.get(c) or (c if c.isascii() else f"\\[u{ord(c):04X}]") for c in text)
    return f"\\&{plain}" if plain.startswith(".") else plain


def _filled(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in filter(None, (re.sub(r"\s+", " ", part).strip() for part in text.split("\n\n"))):
        lines += [".PP", escaped(paragraph)]
    return lines


def roff(page: Page, every: list[Page]) -> str:
    """One page. ``every``: all of them, for SEE ALSO."""
    version = metadata.version("spotburst")
    lines = [
        f'.TH "{escaped(page.name.upper())}" 1 "" "spotburst {escaped(version)}" "User Commands"',
        ".SH NAME",
        f"{escaped(page.name)} \\- {escaped(page.summary.rstrip('.') or 'spot nodes for Slurm jobs')}",
        ".SH SYNOPSIS",
        f".B {escaped(page.usage)}",
        ".SH DESCRIPTION",
        escaped(page.summary),
        *_filled(page.text),
    ]
    for title, records in (("COMMANDS", page.commands), ("OPTIONS", page.options)):
        if records:
            lines.append(f".SH {title}")
        for name, told in records:
            lines += [".TP", f".B {escaped(name)}", escaped(re.sub(r"\s+", " ", told).strip() or name)]
    if page.examples:
        lines.append(".SH EXAMPLES")
    for typed, why in page.examples:
        lines += [".TP", f".B {escaped(typed)}", escaped(f"{why[:1].upper()}{why[1:]}.")]
    lines.append(".SH EXIT STATUS")
    for code, meaning in CODES.items():
        lines += [".TP", f".B {escaped(code)}", escaped(meaning)]
    others = sorted({other.name for other in every if other.path[:-1] == page.path} | {"spotburst"} - {page.name})
    lines += [".SH SEE ALSO", ", ".join([*(f"\\fB{escaped(name)}\\fR(1)" for name in others), "\\fBsrun\\fR(1)"])]
    return "\n".join(lines) + "\n"
