"""``spotburst check``: is this cluster set up as spotburst needs it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from slurm_plugin.checks.finding import State, exit_code
from slurm_plugin.cli import output
from slurm_plugin.cli.look import Role, look
from slurm_plugin.cli.source import ConfigOption, JsonOption

_WORDS = {State.OK: "ok", State.NOTE: "note", State.FAULT: "FAIL", State.UNKNOWN: "?"}


def command(
    config: ConfigOption = None,
    json: JsonOption = False,
    role: Annotated[
        Role | None, typer.Option(help="What this machine is; else it is found out.", show_default=False)
    ] = None,
    clouds: Annotated[bool, typer.Option("--clouds/--no-clouds", help="Ask the clouds, too.")] = True,
) -> None:
    """Look whether all is set up as it must be, and say how to mend what is not.

    On the controller: burst.yaml, slurm.conf as slurmctld has it, rights, the manager, the checkpoint store, clocks, and at the clouds instance types, images and quotas. On a
    login machine what can be seen from there; on a node its agent, its metadata service, the store.

    Ends with 0 if all is well, 1 if there are faults, 2 if not everything could be told.
    """
    found = list(look(config, role, clouds=clouds))
    if json:
        output.as_json([asdict(one) for one in found])
    else:
        output.table(("", "CHECK", "FOUND"), ([_WORDS[one.state], one.what, one.detail] for one in found))
        todo = [one for one in found if one.fix]
        if todo:
            print()
            output.lines("To do", (f"{one.what}: {one.fix}" for one in todo))
    if code := exit_code(found):
        raise typer.Exit(code)
