"""Which watchers a node needs."""

from __future__ import annotations

from collections.abc import Callable

from job_wrapper.errors import UsageError
from job_wrapper.node_config import NodeConfig
from job_wrapper.notice.file import FileWatcher, agent_alive
from job_wrapper.notice.types import Notice, Watcher

PROVIDERS = ("", "aws")


def cloud_watcher(
    node: NodeConfig,
    log: Callable[[str], None],
    asleep: Callable[[], bool] = lambda: False,
    known: Notice | None = None,
) -> Watcher | None:
    """The watcher of the node's provider; None for a node of no cloud. Raises ``UsageError`` for one that is not known."""
    if not node.provider:
        return None
    if node.provider == "aws":
        from job_wrapper.notice.aws import AwsWatcher

        return AwsWatcher(node.metadata_url, log=log, asleep=asleep, known=known)
    raise UsageError(
        f"this node's settings name the provider {node.provider!r}; known here: {', '.join(filter(None, PROVIDERS))}"
    )


def wrapper_watchers(node: NodeConfig, log: Callable[[str], None]) -> list[Watcher]:
    """What a wrapper watches: the agent's file, and the cloud itself as long as no agent is alive."""
    watchers: list[Watcher] = [FileWatcher(node.notice_file, log=log)]
    cloud = cloud_watcher(node, log, asleep=lambda: agent_alive(node.notice_file))
    if cloud is not None:
        watchers.append(cloud)
    return watchers
