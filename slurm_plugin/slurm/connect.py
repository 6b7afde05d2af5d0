"""From the settings to a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.client import SlurmClient

if TYPE_CHECKING:
    from slurm_plugin.config import Slurm


def connect(settings: Slurm) -> SlurmClient:
    """The client that ``slurm`` in burst.yaml asks for. Raises ``ConfigError`` when its slurm.conf isn't there."""
    if not settings.conf.is_file():
        raise ConfigError(f"slurm.conf: {settings.conf} is not there; set slurm.conf in burst.yaml to where it is")
    if settings.client == "pyslurm":
        raise ConfigError("slurm.client: pyslurm is not built in yet; use cli or auto")
    return CliClient(settings.bin_dir, settings.conf)
