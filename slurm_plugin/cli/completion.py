"""Completion on Tab: the script for each shell, and what a word can be: jobs, nodes, offerings, options of ``spotburst run``.

The scripts call ``spotburst`` again on each Tab, so they need not be made anew with a new version. What can't be asked in time is left
out: a key that is pressed must not hang, and no error belongs on the line that is being typed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import wraps
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from job_wrapper.counted import counted
from slurm_plugin.cli.job_ids import is_job_id

VARIABLE = "_SPOTBURST_COMPLETE"
"""Set by the scripts: how the shell asks."""
PATIENCE = 3.0
"""Seconds that Slurm is given to answer."""
MOST = 200
_PLAIN = re.compile(r"[^\w .:-]", re.ASCII)
"""What others have named is read by a shell: nothing else of it is shown."""

Found = list[tuple[str, str]]
"""Words and, where the shell shows it, what each is."""


class Shell(str, Enum):
    """Those that are supported."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(shell: Annotated[Shell, typer.Argument(help="Whose script to print.")]) -> None:
    """Print the script that lets a shell complete spotburst's commands, options, jobs and nodes.

    Put it where that shell looks for such scripts, or have it read at the start: `eval "$(spotburst completion bash)"`.
    """
    print(script(shell.value))


def script(shell: str) -> str:
    """The completion script for ``bash``, ``zsh`` or ``fish``."""
    from typer._completion_shared import get_completion_script

    text = get_completion_script(prog_name="spotburst", complete_var=VARIABLE, shell=shell)
    if shell == Shell.ZSH.value:
        # zsh runs the file itself at the first Tab where it is one of its functions.
        text += '\n\nif [ "${funcstack[1]}" = _spotburst ]; then _spotburst_completion "$@"; fi'
    return text


def _quietly(ask: Callable[[], Iterable[tuple[str, str]]]) -> Callable[[str], Found]:
    @wraps(ask)
    def complete(incomplete: str) -> Found:
        try:
            found = [(word, _PLAIN.sub("", why)) for word, why in ask() if word.startswith(incomplete)]
        except Exception:
            return []  # anything on the terminal now would spoil the line that is being typed
        return found[:MOST]

    del complete.__wrapped__  # else typer takes the parameters from there
    return complete


@_quietly
def jobs() -> Iterator[tuple[str, str]]:
    """One's own jobs that Slurm shows, tasks of arrays one by one."""
    program = shutil.which("squeue")
    if program is None:
        return
    done = subprocess.run(
        [program, "--me", "--array", "--noheader", "--format=%i|%T %j"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    for line in done.stdout.decode(errors="replace").splitlines():
        job, _, why = line.partition("|")
        if is_job_id(job.strip()):
            yield job.strip(), why


@_quietly
def nodes() -> Iterator[tuple[str, str]]:
    """Nodes of burst.yaml."""
    for nodeset in _config().nodesets:
        for name in nodeset.node_names:
            yield name, nodeset.name


@_quietly
def nodesets() -> Iterator[tuple[str, str]]:
    """Nodesets of burst.yaml."""
    for nodeset in _config().nodesets:
        yield nodeset.name, counted(len(nodeset.node_names), "node")


@_quietly
def offerings() -> Iterator[tuple[str, str]]:
    """Offerings of burst.yaml."""
    config = _config()
    yield "all", "every one of them"
    for id_ in sorted({o.id for nodeset in config.nodesets for o in config.offerings_of(nodeset)}):
        yield id_, ""


def _config() -> Any:
    from slurm_plugin.config import find_config, load_config

    return load_config(find_config())


class Word(NamedTuple):
    """One completion, as the shells' classes read it."""

    value: str
    help: str | None = None
    type: str = "plain"


class RunCommand(TyperCommand):
    """``spotburst run`` as it stands in the list: its options are the wrapper's own parser's."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Its options; files for everything else."""
        from job_wrapper.run.options import parser

        if not incomplete.startswith("-"):
            return []
        return [
            Word(option, action.help)
            for action in parser()._actions
            for option in action.option_strings
            if option.startswith(incomplete)
        ]


def complete(app: Callable[[str | None], typer.Typer]) -> int:
    """Answer the shell. ``app`` makes the commands: one of a name, or with None just their names, which need no import.

    Nothing is said of what goes wrong: it would stand on the line that is being typed.
    """
    from typer._completion_classes import completion_init

    words = re.split(r"\s+", os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "")[1:]
    completion_init()
    try:
        group = typer.main.get_command(app(words[0] if len(words) > 1 else None))
        group.main(args=[], prog_name="spotburst", complete_var=VARIABLE, standalone_mode=True)
    except Exception:
        return 1
    return 0
