"""All commands of ``spotburst`` but ``run`` and ``agent``, put together."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Annotated, TextIO

import structlog
import typer

from job_wrapper.errors import SpotburstError
from slurm_plugin.cli.completion import VARIABLE, RunCommand, complete
from slurm_plugin.cli.examples import epilog
from slurm_plugin.cli.output import coloured, printable

_GROUPS = {
    "describe": "slurm_plugin.cli.describe",
    "attempts": "slurm_plugin.cli.attempts",
    "report": "slurm_plugin.cli.report",
    "checkpoints": "slurm_plugin.cli.checkpoints",
    "checkpoint": "slurm_plugin.cli.checkpoint",
    "suspend": "slurm_plugin.cli.suspend",
    "resume": "slurm_plugin.cli.resume",
    "cancel": "slurm_plugin.cli.cancel",
    "shell": "slurm_plugin.cli.shell",
    "nodes": "slurm_plugin.cli.nodes",
    "offerings": "slurm_plugin.cli.offerings",
    "cost": "slurm_plugin.cli.cost",
    "plan": "slurm_plugin.cli.plan",
    "check": "slurm_plugin.cli.check",
    "store": "slurm_plugin.cli.store",
    "render": "slurm_plugin.cli.render",
    "manager": "slurm_plugin.cli.manager",
    "local": "slurm_plugin.cli.local",
    "completion": "slurm_plugin.cli.completion",
    "man": "slurm_plugin.cli.man",
}
"""Command to the module that has it: ``app`` there is a group of commands, else ``command`` is one."""


def start(arguments: Sequence[str]) -> int:
    """Run one command; errors that a user can meet end as one line and their exit code."""
    # Nothing but answers on standard output.
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=coloured(sys.stderr), pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    try:
        if VARIABLE in os.environ:
            return complete(_app)
        result = _app(arguments[0] if arguments else "")(
            args=list(arguments), prog_name="spotburst", standalone_mode=True
        )
    except SpotburstError as error:
        for line in str(error).splitlines():
            print(f"spotburst: {printable(line)}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        _let_go_of(sys.stdout)
        return 141
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        return 130
    return int(result or 0)


def _let_go_of(stream: TextIO) -> None:
    """Nobody reads it any more: Python's own flush at the end must not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def everything() -> typer.Typer:
    """All commands."""
    return _app("")


def _app(wanted: str | None) -> typer.Typer:
    """The command asked for alone, since some take long to import; all of them when none is named. None: only names, to be completed."""
    app = typer.Typer(
        name="spotburst",
        help="Cloud spot GPU nodes as a safe place for Slurm jobs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=epilog(""),
    )
    app.callback()(_options)
    chosen = {wanted: _GROUPS[wanted]} if wanted is not None and wanted in _GROUPS else _GROUPS
    if len(chosen) > 1:
        app.command("run", cls=RunCommand, help="Run a program that survives reclaims.")(_elsewhere)
        app.command("progress", help="Tell the wrapper how far the program is.")(_elsewhere)
        app.command("agent", help="Watch for notices (a service of each node).")(_elsewhere)
    for name, module in chosen.items():
        if wanted is None:
            app.command(name)(lambda: None)
            continue
        room = import_module(module)
        if hasattr(room, "app"):
            app.add_typer(_with_examples(room.app, name), name=name, epilog=epilog(name))
        else:
            app.command(name, epilog=epilog(name))(room.command)
    return app


def _with_examples(group: typer.Typer, name: str) -> typer.Typer:
    for info in group.registered_commands:
        if info.callback is not None:
            info.epilog = epilog(f"{name} {info.name or info.callback.__name__.replace('_', '-')}")
    return group


def _elsewhere() -> None:
    """``run``, ``progress`` and ``agent`` are started before this (see ``slurm_plugin.cli``); here they only stand in the list."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"spotburst {metadata.version('spotburst')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
