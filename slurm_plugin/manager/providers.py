"""The providers that burst.yaml names, each in a lane."""

from __future__ import annotations

from importlib import import_module

from slurm_plugin.cloud.provider import Provider
from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.manager.lane import LIST_EVERY, Lane

MODULES = {
    "local": "slurm_plugin.cloud.local.cloud",
    "aws": "slurm_plugin.cloud.aws.cloud",
    "gcp": "slurm_plugin.cloud.gcp.cloud",
    "azure": "slurm_plugin.cloud.azure.cloud",
}
"""By the type in burst.yaml: what has ``from_config(config, name)``. Imported only when named: each has a client library of its own."""


def build_lanes(config: Config) -> dict[str, Lane]:
    """By name. Raises ``ConfigError`` for a type that this version does not have, or whose client library is not installed."""
    return {
        name: Lane(build(config, name), LIST_EVERY.get(settings.type, 5.0))
        for name, settings in config.providers.items()
    }


def build(config: Config, name: str) -> Provider:
    """The provider of that name. Raises ``ConfigError`` as ``build_lanes`` does. Nothing is sent to the cloud."""
    kind = config.providers[name].type
    module = MODULES[kind]
    try:
        provider: Provider = import_module(module).from_config(config, name)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise ConfigError(
                f"providers.{name}.type: {kind} is not built yet in this version. "
                "Remove the provider and the offerings that name it"
            ) from None
        raise ConfigError(
            f"providers.{name}.type: {kind} needs a library that is not installed here ({error.name}): "
            f"pip install 'spotburst[{kind}]' into {_environment()}"
        ) from None
    return provider


def _environment() -> str:
    import sys

    return sys.prefix
