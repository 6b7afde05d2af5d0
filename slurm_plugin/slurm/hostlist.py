"""Slurm hostlists (``gpu-[1-3,7]``) by ClusterShell, with errors in our words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ClusterShell.NodeSet import NodeSet

from slurm_plugin.errors import ConfigError

_no_groups = {"resolver": None}
_ONE_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER = re.compile(r"[0-9]{19}")
_TERM = re.compile(r"(?:\[[^]]*\]|[^,\[])+")
_RANGE = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*(?:/\s*([0-9]+)\s*)?)?")
MOST = 1 << 17
"""Names of one hostlist: twice what Slurm's own take in a range (src/common/hostlist.c: 64 Ki)."""


def expand(hostlist: str) -> tuple[str, ...]:
    """``gpu-[1-3]`` to ``("gpu-1", "gpu-2", "gpu-3")``; "" to (). Raises ``ConfigError``."""
    if not hostlist.strip():
        return ()
    if _ONE_NAME.fullmatch(hostlist) and not _NUMBER.search(hostlist):
        return (hostlist,)  # the short way: a resume names the nodes of a thousand jobs
    if "@" in hostlist or "!" in hostlist or "&" in hostlist or "^" in hostlist:
        raise ConfigError(f"{hostlist[:80]!r} is not a Slurm hostlist")
    refuse_oversize(hostlist)
    try:
        return tuple(NodeSet(hostlist, **_no_groups))
    except Exception as error:  # NodeSetException for most of what is wrong, and for some of it others
        raise ConfigError(f"{hostlist[:80]!r} is not a Slurm hostlist: {str(error)[:150]}") from None


def refuse_oversize(hostlist: str) -> None:
    """Raises ``ConfigError`` for more than ``MOST`` names, numbers that no node has and ranges that are none: to expand them could take all memory."""
    if _NUMBER.search(hostlist):
        raise ConfigError(f"{hostlist[:40]!r}… is not a Slurm hostlist: it has a number of more than 18 digits")
    count = sum(
        math.prod(_count(ranges) for ranges in re.findall(r"\[([^]]*)\]", term)) for term in _TERM.findall(hostlist)
    )
    if count > MOST:
        raise ConfigError(f"{hostlist[:40]!r} names {count} nodes: at most {MOST} can be named at once")


def _count(ranges: str) -> int:
    """How many numbers ``1-3,7,10-20/2`` has, or a few more."""
    count = 0
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:  # ClusterShell takes 1-99999991-39999 for a range of a hundred million
            raise ConfigError(f"{part[:40]!r} is not a Slurm hostlist's range")
        first, last, step = (int(each or 0) for each in found.groups())
        count += 1 + max(0, last - first) // max(1, step)
    return count


def fold(names: Iterable[str]) -> str:
    """Names to the shortest hostlist."""
    return str(NodeSet.fromlist(list(names), **_no_groups))
