"""What can go wrong on the controller side. ``str(error)`` is the whole message for the user."""

from __future__ import annotations

from job_wrapper.errors import SpotburstError


class ConfigError(SpotburstError):
    """burst.yaml is wrong: the message names file, key, what stands there and what is allowed."""

    reason = "ConfigError"


class SlurmUnavailable(SpotburstError):
    """slurmctld does not answer, or its answer can't be read. Nothing may be concluded from it."""

    reason = "SlurmUnavailable"


class SlurmRefused(SpotburstError):
    """Slurm said no to one command; the message carries the command and Slurm's own words."""

    reason = "SlurmRefused"


class LedgerDamaged(SpotburstError):
    """The manager's ledger was damaged while it ran. Started again it begins a new one."""

    reason = "LedgerDamaged"


class CloudUnavailable(SpotburstError):
    """A cloud's API does not answer or throttles. Nothing may be concluded about its instances; try again later."""

    reason = "CloudUnavailable"


class NotPermitted(CloudUnavailable):
    """A cloud does not let this account ask. ``permission``: what it lacks, in the cloud's own name."""

    def __init__(self, message: str, permission: str) -> None:
        super().__init__(message)
        self.permission = permission


class LocalCloudError(SpotburstError):
    """The embedded cloud can't run here (not root, a missing command), or lacks what was named."""

    reason = "LocalCloud"
