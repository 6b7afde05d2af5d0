"""``spotburst manager``: the loop on the controller."""

from __future__ import annotations

import typer

from slurm_plugin.cli.source import ConfigOption
from slurm_plugin.config import find_config


def command(config: ConfigOption = None) -> None:
    """Run the manager (a service of the controller).

    It launches and ends machines and brings jobs back. Runs as SlurmUser.
    """
    path = config or find_config()
    from slurm_plugin.manager import main

    raise typer.Exit(main(path))
