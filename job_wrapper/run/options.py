"""Arguments of ``spotburst run``, and the settings that they and the node give together."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from job_wrapper.durations import seconds_of
from job_wrapper.errors import UsageError
from job_wrapper.interval import LONGEST
from job_wrapper.node_config import NodeConfig
from job_wrapper.run.rules import MAX_SIZE, STORE_PATIENCE
from job_wrapper.store.shown import without_end

_DIGITS = 30
"""Of a size, at most: one of some hundred is no number for a computer."""
_BYTES = {"": 1, **{f"{p}{b}": 1024 ** (i + 1) for i, p in enumerate("KMGT") for b in ("", "iB")}}

AUTO = "auto"
"""The interval that is chosen as the attempt goes on."""
CHECKPOINT, RESTARTABLE, EPHEMERAL = "checkpoint", "restartable", "ephemeral"
"""Values of ``--continuity``: the next attempt goes on from the program's state, from its progress counters, or begins anew."""


def parse_duration(text: str) -> float:
    """A duration above 0 (``seconds_of``), to seconds. Raises ``ArgumentTypeError``."""
    try:
        seconds = seconds_of(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration: write a number above 0 with s, m, h or d, such as 10m"
        )
    return seconds


def parse_interval(text: str) -> float:
    """``auto``, which is 0, or a duration of at most 6 h, to seconds. Raises ``ArgumentTypeError``."""
    if text.strip() == AUTO:
        return 0.0
    seconds = parse_duration(text)
    if seconds > LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than {LONGEST / 3600:g} h: write auto, or from 1m to 6h")
    return seconds


def parse_size(text: str) -> int:
    """``"512MiB"``, ``"100G"``, ``"1TiB"`` or a number of bytes; K, M, G and T are powers of 1024. Raises ``ArgumentTypeError``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match[2] if match else "?"
    if match is None or unit not in _BYTES or len(match[1]) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write a number with K, M, G or T, such as 500GiB")
    return int(float(match[1]) * _BYTES[unit])


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of checkpoints to keep: write 1 or more")
    return int(text)


@dataclass(frozen=True, slots=True)
class Options:
    """What one wrapper runs with. ``interval`` (0 for ``auto``) and ``patience`` in seconds, ``max_size`` in bytes."""

    command: tuple[str, ...]
    name: str
    run: str
    uri: str
    endpoint_url: str
    interval: float
    keep: int
    state_dirs: tuple[str, ...]
    max_size: int
    requeue: bool
    continuity: str = CHECKPOINT
    patience: float = STORE_PATIENCE
    allow_config_change: tuple[str, ...] = ()


def _formatter(prog: str) -> argparse.HelpFormatter:
    """argparse makes one for every argument, and would import shutil to find the width."""
    try:
        width = os.get_terminal_size().columns - 2
    except OSError:
        width = 78
    return argparse.HelpFormatter(prog, width=width)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown, options = message.removeprefix("unrecognized arguments: "), self._option_string_actions
        if unknown != message:
            from difflib import get_close_matches  # only where it is needed: the wrapper starts with every job

            near = get_close_matches(unknown.split()[0].split("=")[0], options, n=1)
            message += f" (did you mean {near[0]}? " if near else " ("
            message += "`spotburst run --help` lists the options)"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """Of the arguments before ``--``."""
    made = _Parser(
        prog="spotburst run",
        usage="spotburst run [options] -- COMMAND [ARGUMENT ...]",
        description="Run a program that survives reclaims and preemption: checkpoints it, requeues the job, restores it.",
        epilog="In a Slurm job put it under srun: `srun spotburst run -- python train.py`.",
        allow_abbrev=False,
        formatter_class=_formatter,
    )
    made.add_argument("--name", default="main", help="tells several wrapped programs of one job apart (default: main)")
    made.add_argument("--run", default="", metavar="NAME", help="a name for the run that outlives the job")
    made.add_argument(
        "--uri", default="", help="where checkpoints go: file:///shared/dir, s3://bucket/prefix, gs://… or az://…"
    )
    made.add_argument(
        "--endpoint-url", default="", metavar="URL", help="the store's server, if it is not the cloud's own"
    )
    made.add_argument(
        "--interval",
        type=parse_interval,
        metavar="TIME",
        help="between checkpoints: from 1m to 6h (shorter for trials), or auto, by what a save costs and how often capacity is taken (default: auto)",
    )
    made.add_argument("--keep", type=_count, metavar="N", help="checkpoints to keep (default: 3)")
    made.add_argument(
        "--state-dir", action="append", default=[], metavar="DIR", help="checkpoint these files too (up to 64 times)"
    )
    made.add_argument(
        "--max-size",
        type=parse_size,
        default=MAX_SIZE,
        metavar="SIZE",
        help="most that state directories may hold (default: 1TiB)",
    )
    made.add_argument(
        "--on-interruption",
        choices=("requeue", "fail"),
        default="requeue",
        help="what to do after the last checkpoint when the capacity goes away (default: requeue)",
    )
    made.add_argument(
        "--continuity",
        choices=(CHECKPOINT, RESTARTABLE, EPHEMERAL),
        default=CHECKPOINT,
        help="what the next attempt goes on from: the program's state, its progress counters, or nothing (default: checkpoint)",
    )
    made.add_argument(
        "--store-patience",
        type=parse_duration,
        default=STORE_PATIENCE,
        metavar="TIME",
        help="how long a store that is away is waited for before the job is requeued (default: 30m)",
    )
    made.add_argument(
        "--allow-config-change",
        action="append",
        default=[],
        metavar="KEY",
        help="a key of a torch program's config that may differ from the checkpoint's (several times; '*' for all)",
    )
    made.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def parse_options(argv: Sequence[str], node: NodeConfig, environ: Mapping[str, str] = os.environ) -> Options:
    """Arguments before ``SPOTBURST_URI`` before the node's settings before defaults.

    Exits with 2 as argparse does; raises ``UsageError``.
    """
    # Split here: argparse's handling of "--" differs between Python versions.
    split = list(argv).index("--") if "--" in argv else len(argv)
    arguments = parser().parse_args(list(argv[:split]))
    command = [*arguments.command, *argv[split + 1 :]]
    if not command:
        raise UsageError("no program given: spotburst run [options] -- COMMAND [ARGUMENT ...]")
    given = arguments.uri or environ.get("SPOTBURST_URI", "")
    uri = without_end(given or node.uri)
    if not uri:
        raise UsageError(
            "no place for checkpoints: give --uri file:///shared/dir or s3://bucket/prefix (or gs://, az://), or set SPOTBURST_URI "
            "(in a cluster set up by spotburst the node's settings name it)"
        )
    if arguments.state_dir and arguments.continuity != CHECKPOINT:
        raise UsageError(
            f"--state-dir can't be kept with --continuity {arguments.continuity}: leave one of the two out"
        )
    return Options(
        command=tuple(command),
        name=arguments.name,
        run=arguments.run,
        uri=uri,
        endpoint_url=arguments.endpoint_url or ("" if given else node.endpoint_url),
        interval=node.interval if arguments.interval is None else arguments.interval,
        keep=arguments.keep or node.keep,
        state_dirs=tuple(arguments.state_dir),
        max_size=arguments.max_size,
        requeue=arguments.on_interruption == "requeue",
        continuity=arguments.continuity,
        patience=arguments.store_patience,
        allow_config_change=tuple(arguments.allow_config_change),
    )
