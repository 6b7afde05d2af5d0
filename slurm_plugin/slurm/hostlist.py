"""Slurm hostlists (``gpu-[1-3,7]``) by ClusterShell, with errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import NodeSet, NodeSetException

from slurm_plugin.errors import ConfigError

_no_groups = {"resolver": None}
_ONE_NAME = re.compile(r"[A-Za-z0-9._-]+")


def expand(hostlist: str) -> tuple[str, ...]:
    """``gpu-[1-3]`` to ``("gpu-1", "gpu-2", "gpu-3")``; "" to (). Raises ``ConfigError``."""
    if not hostlist.strip():
        return ()
    if _ONE_NAME.fullmatch(hostlist):
        return (hostlist,)  # the short way: a resume names the nodes of a thousand jobs
    if "@" in hostlist or "!" in hostlist or "&" in hostlist or "^" in hostlist:
        raise ConfigError(f"{hostlist!r} is not a Slurm hostlist")
    try:
        return tuple(NodeSet(hostlist, **_no_groups))
    except NodeSetException as error:
        raise ConfigError(f"{hostlist!r} is not a Slurm hostlist: {error}") from None


def fold(names: Iterable[str]) -> str:
    """Names to the shortest hostlist."""
    return str(NodeSet.fromlist(list(names), **_no_groups))
