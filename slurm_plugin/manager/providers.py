"""The providers that burst.yaml names, each in a lane."""

from __future__ import annotations

from slurm_plugin.cloud.local.cloud import from_config
from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.manager.lane import LIST_EVERY, Lane


def build_lanes(config: Config) -> dict[str, Lane]:
    """By name. Raises ``ConfigError`` for a type that this version does not have."""
    lanes = {}
    for name, settings in config.providers.items():
        if settings.type != "local":
            raise ConfigError(
                f"providers.{name}.type: {settings.type} is not built yet in this version; only local is. "
                "Remove the provider and the offerings that name it"
            )
        lanes[name] = Lane(from_config(config, name), LIST_EVERY.get(settings.type, 5.0))
    return lanes
