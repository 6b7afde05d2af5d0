"""Our part of a Slurm job's comment: the place where users look for why, and the one place that outlives a job's nodes while its store
is away. Pure.

The user's own comment stands before ours. Ours may end with since when the job has been without its store; that stays when the rest changes.
"""

from __future__ import annotations

import calendar
import re
import time

OURS = "spotburst: "
"""Every reason and comment that spotburst writes begins with this; only such ones does it change."""
_AWAY = re.compile(r"(?:; )?store away since (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def comment(standing: str, text: str) -> str:
    """The comment with our part replaced. ``text`` "": nothing more is to be said."""
    own = standing.split(f" | {OURS}")[0]
    own = "" if own.startswith(OURS) else own
    since = away_since(standing)
    mark = "" if since is None else f"store away since {_moment(since)}"
    ours = "; ".join(filter(None, [_AWAY.sub("", text), mark]))
    return " | ".join(filter(None, [own, f"{OURS}{ours}" if ours else ""]))


def away_since(standing: str) -> float | None:
    """Since when this job's attempts have not found their store (Unix seconds); None where they have, or no such time stands there."""
    at = 0 if standing.startswith(OURS) else standing.find(f" | {OURS}")
    found = None if at < 0 else _AWAY.search(standing, at)
    try:
        return None if found is None else float(calendar.timegm(time.strptime(found[1], _FORMAT)))
    except ValueError:
        return None


def with_away(standing: str, since: float, text: str) -> str:
    """The comment with our part replaced, and since when the store has been away."""
    return comment(f"{comment(_unmarked(standing), '')} | {OURS}store away since {_moment(since)}", text)


def without_away(standing: str) -> str:
    """The comment without that, and without what was said of it."""
    return comment(_unmarked(standing), "")


def _unmarked(standing: str) -> str:
    at = 0 if standing.startswith(OURS) else standing.find(f" | {OURS}")
    return standing if at < 0 else standing[:at] + _AWAY.sub("", standing[at:])


def _moment(when: float) -> str:
    return time.strftime(_FORMAT, time.gmtime(when))
