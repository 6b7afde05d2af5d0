"""From the settings to a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from slurm_plugin.errors import ConfigError, SlurmUnavailable
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.pyslurm_client import PyslurmClient, installed

if TYPE_CHECKING:
    from slurm_plugin.config import Slurm

log = structlog.get_logger(__name__)


def require_conf(settings: Slurm) -> None:
    """Raises ``ConfigError`` when the settings' slurm.conf isn't there."""
    if not settings.conf.is_file():
        raise ConfigError(f"slurm.conf: {settings.conf} is not there; set slurm.conf in burst.yaml to where it is")


def connect(settings: Slurm) -> CliClient:
    """The client for a few questions: Slurm's commands. Raises ``ConfigError`` when the settings' slurm.conf isn't there."""
    require_conf(settings)
    return CliClient(settings.bin_dir, settings.conf)


def connect_for_long(settings: Slurm) -> SlurmClient:
    """The client for a process that goes on asking, as ``slurm.client`` in burst.yaml has it.

    "auto" takes pyslurm where it is installed and was built for slurmctld's version (its library speaks to no other safely), and the
    commands everywhere else. Raises ``ConfigError`` as ``connect``, and where pyslurm is asked for and can't serve.
    """
    commands = connect(settings)
    if settings.client == "cli" or (settings.client == "auto" and not installed()):
        return commands
    if not installed():
        raise ConfigError("slurm.client: pyslurm is not installed here; install it for this Slurm, or use cli or auto")
    client = PyslurmClient(settings.bin_dir, settings.conf)
    fault = _fault(client)
    if not fault:
        return client
    client.close()
    if settings.client == "pyslurm":
        raise ConfigError(
            f"slurm.client: pyslurm can't be used: {fault}. Install the one for this Slurm, or use cli or auto"
        )
    log.warning("Slurm's commands are used instead of pyslurm", reason=fault)
    return commands


def _fault(client: PyslurmClient) -> str:
    """Why this pyslurm can't serve; "" if it can, as far as is known while slurmctld doesn't answer."""
    try:
        built = client.built_for()
    except SlurmUnavailable as error:
        return str(error)
    try:
        running = client.version()
    except SlurmUnavailable:
        return ""
    if built == running[:2]:
        return ""
    return (
        f"it was built for Slurm {built[0]}.{built[1]:02}, and slurmctld is {running[0]}.{running[1]:02}.{running[2]}"
    )
