"""Times as clouds write them. Source: RFC 3339."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?")


def unix_seconds(text: str) -> float | None:
    """RFC 3339, with any number of decimals, to Unix seconds; UTC where no zone is told. None for anything else."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    try:
        when = datetime.fromisoformat(match[1] + (match[3] or "Z").replace("Z", "+00:00"))
    except ValueError:  # the 31st of February
        return None
    return when.astimezone(timezone.utc).timestamp() + float(match[2] or 0)
