"""Slurm as the commands ask it: where it does not answer, one short sentence says so, and what helps. Slurm's own words may be "Unspecified error"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_plugin.config import Config
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.command import is_absence
from slurm_plugin.slurm.records import Job, Node

_NO_ANSWER = re.compile(r"unspecified error|no answer within", re.IGNORECASE)
"""22.05's ``--json`` says no more than the first when it finds no slurmctld; the second is of a command that was given up on."""


class PlainClient(CliClient):
    """``CliClient`` of a command that a person has typed. ``config`` None: by PATH and SLURM_CONF."""

    def __init__(self, config: Config | None, timeout: float = 10.0) -> None:
        bin_dir, conf = (config.slurm.bin_dir, config.slurm.conf) if config is not None else (None, None)
        super().__init__(bin_dir, conf, timeout)
        self._config = config

    def jobs(self) -> tuple[Job, ...]:
        """As ``CliClient``."""
        with self._plainly():
            return super().jobs()

    def nodes(self) -> tuple[Node, ...]:
        """As ``CliClient``."""
        with self._plainly():
            return super().nodes()

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        try:
            yield
        except SlurmUnavailable as error:
            raise SlurmUnavailable(why_silent(str(error), _down(self._config))) from error


def why_silent(said: str, down: Path | None) -> str:
    """In place of what a command ``said``. ``down``: folder of the private cluster that is meant, where that does not run. Pure."""
    if down is not None:
        return f"the local cluster in {down} is down: `spotburst local up {down}` starts it"
    if "configuration source" in said:
        return "no Slurm is configured here: export SLURM_CONF, or run this on a machine of the cluster"
    if re.search("munge|authentication", said, re.IGNORECASE):
        return "Slurm can't tell who asks: see `systemctl status munge` (or sackd) here, its key and the clock"
    if is_absence(said) or _NO_ANSWER.search(said):
        return "slurmctld does not answer: see `systemctl status slurmctld` on its host"
    return said


def _down(config: Config | None) -> Path | None:
    from slurm_plugin.local_cluster.daemons import Daemons

    if config is None:
        return None
    root = config.state_dir.parent
    placed = config.slurm.conf == root / "etc" / "slurm.conf" and (root / "run").is_dir()
    return root if placed and not Daemons(root).alive("slurmctld") else None
