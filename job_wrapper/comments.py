"""Our part of a Slurm job's comment: the place where users look for why, and the one place that outlives a job's nodes while its store
is away. Pure.

The user's own comment stands before ours. Ours may end with two marks, which stay when the rest changes: which nodes the job left because
they go away, and since when it has been without its store. Both are over once its next attempt has begun.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator

OURS = "spotburst: "
"""Every reason and comment that spotburst writes begins with this; only such ones does it change."""
_AWAY = re.compile(r"(?:; )?store away since (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
_LEFT = re.compile(r"(?:; )?left ([\w.,-]+) at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_NAMES_LENGTH = 500
"""Characters of node names in a mark: Slurm takes 1,024 bytes of comment, and the user's own stands there too."""


def comment(standing: str, text: str) -> str:
    """The comment with our part replaced. ``text`` "": nothing more is to be said."""
    own = standing.split(f" | {OURS}")[0]
    own = "" if own.startswith(OURS) else own
    ours = "; ".join(filter(None, [_LEFT.sub("", _AWAY.sub("", text)), *_marks(standing)]))
    return " | ".join(filter(None, [own, f"{OURS}{ours}" if ours else ""]))


def away_since(standing: str) -> float | None:
    """Since when this job's attempts have not found their store (Unix seconds); None where they have, or no such time stands there."""
    found = _found(_AWAY, standing)
    return None if found is None else _seconds(found[1])


def left_nodes(standing: str) -> tuple[frozenset[str], float] | None:
    """The nodes that the job's newest attempt left because they go away, and when (Unix seconds); None where none stand there."""
    found = _found(_LEFT, standing)
    when = None if found is None else _seconds(found[2])
    return None if found is None or when is None else (frozenset(found[1].split(",")), when)


def with_left(standing: str, nodes: Iterable[str], when: float) -> str:
    """The comment with that mark, in place of an older one. ``when``: Unix seconds. Of very many nodes only the first are named."""
    names = ",".join(nodes)
    if len(names) > _NAMES_LENGTH:
        names = names[:_NAMES_LENGTH].rpartition(",")[0]
    mark = f"left {names} at {_moment(when)}"
    at = _ours_at(standing)
    if at < 0:
        return " | ".join(filter(None, [standing, f"{OURS}{mark}"]))
    others = _without(_LEFT, standing)
    return others + mark if others.endswith(OURS) else f"{others}; {mark}"


def with_away(standing: str, since: float, text: str) -> str:
    """The comment with our part replaced, and since when the store has been away."""
    return comment(f"{comment(_without(_AWAY, standing), '')} | {OURS}store away since {_moment(since)}", text)


def without_marks(standing: str) -> str:
    """The comment without the marks, and without what was said of them."""
    return comment(_without(_LEFT, _without(_AWAY, standing)), "")


def _marks(standing: str) -> Iterator[str]:
    left, since = left_nodes(standing), away_since(standing)
    if left is not None:
        yield f"left {','.join(sorted(left[0]))} at {_moment(left[1])}"
    if since is not None:
        yield f"store away since {_moment(since)}"


def _without(mark: re.Pattern[str], standing: str) -> str:
    at = _ours_at(standing)
    return standing if at < 0 else standing[:at] + mark.sub("", standing[at:])


def _found(pattern: re.Pattern[str], standing: str) -> re.Match[str] | None:
    at = _ours_at(standing)
    return None if at < 0 else pattern.search(standing, at)


def _ours_at(standing: str) -> int:
    """Where our part begins; -1 where there is none."""
    return 0 if standing.startswith(OURS) else standing.find(f" | {OURS}")


def _seconds(moment: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(moment, _FORMAT)))
    except ValueError:
        return None


def _moment(when: float) -> str:
    return time.strftime(_FORMAT, time.gmtime(when))
