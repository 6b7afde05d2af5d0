"""Which watchers a node needs: from its settings, else from what answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from job_wrapper.errors import UsageError
from job_wrapper.node_config import NodeConfig
from job_wrapper.notice.file import FileWatcher, agent_alive
from job_wrapper.notice.types import Notice, Watcher

if TYPE_CHECKING:
    from job_wrapper.notice.watch import CloudWatcher, Source

PROVIDERS = ("aws", "azure", "gcp")
AUTO = "auto"
NONE = "none"


def source_of(provider: str, node: NodeConfig) -> Source:
    """That provider's source. Raises ``UsageError`` for one that is not known, and for an address that is none."""
    try:
        if provider == "aws":
            from job_wrapper.notice.aws import AwsSource

            return AwsSource(node.metadata_url)
        if provider == "gcp":
            from job_wrapper.notice.gcp import GcpSource

            return GcpSource(node.metadata_url, notice=node.notice_seconds or 30.0)
        if provider == "azure":
            from job_wrapper.notice.azure import AzureSource

            return AzureSource(node.metadata_url, node.node)
    except ValueError as error:
        raise UsageError(f"this node's settings, metadata_url: {error}") from None
    raise UsageError(
        f"this node's settings name the provider {provider!r}; known here: {', '.join(PROVIDERS)}, "
        f"{AUTO} (ask which is here) and {NONE}"
    )


def cloud_watcher(
    node: NodeConfig,
    provider: str,
    log: Callable[[str], None],
    asleep: Callable[[], bool] = lambda: False,
    known: Notice | None = None,
) -> CloudWatcher:
    """The watcher of that provider. Raises ``UsageError`` for one that is not known."""
    from job_wrapper.notice.watch import CloudWatcher  # most wrappers need none

    return CloudWatcher(source_of(provider, node), log=log, asleep=asleep, known=known)


def find_provider(node: NodeConfig, wait: Callable[[float], bool]) -> str:
    """The settings' provider, else the one whose metadata service answers; "" for none. Takes some seconds.

    Raises ``UsageError`` when the settings' address is none.
    """
    if node.provider not in ("", AUTO):
        return "" if node.provider == NONE else node.provider
    from job_wrapper.notice.probe import find

    try:
        return find(node.metadata_url, wait)
    except ValueError as error:
        raise UsageError(f"this node's settings, metadata_url: {error}") from None


def wrapper_watchers(node: NodeConfig, log: Callable[[str], None]) -> list[Watcher]:
    """What a wrapper watches: the agent's file, and the cloud itself as long as no agent is alive.

    Where the settings name no provider, the clouds are asked if the firmware says that this is a machine of one of them.
    """
    watchers: list[Watcher] = [FileWatcher(node.notice_file, log=log)]

    def asleep() -> bool:
        return agent_alive(node.notice_file)

    if node.provider not in ("", AUTO, NONE):
        watchers.append(cloud_watcher(node, node.provider, log, asleep))
    elif node.provider != NONE:
        from job_wrapper.notice.probe import Found, vendor_hint

        if node.provider == AUTO or vendor_hint():
            watchers.append(Found(node.metadata_url, lambda name: cloud_watcher(node, name, log, asleep), log))
    return watchers
