"""When to stop bringing a run back (DESIGN §5). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from job_wrapper.counted import counted
from job_wrapper.errors import MaxAttempts, NoProgress, SpotburstError
from job_wrapper.store.io_types import Summary


@dataclass(frozen=True, slots=True)
class Bounds:
    """``recoveries``: most claims after the first of one job. ``barren``: attempts in a row without a new commit."""

    recoveries: int = 8
    barren: int = 2


def check_bounds(summary: Summary, bounds: Bounds) -> SpotburstError | None:
    """What ends the run at this claim, or None. ``summary`` is that of the claim just made, which counts this recovery."""
    if summary.barren >= bounds.barren:
        newest = summary.commits[-1] if summary.commits else None
        since = f"since the commit of step {newest.step} (entry {newest.seq})" if newest else "ever"
        return NoProgress(
            f"{counted(summary.barren, 'attempt')} in a row ended without a new commit {since}. Bringing this job back again would not help: "
            "see why its attempts end (`spotburst attempts JOB`), or checkpoint more often (--interval)"
        )
    if summary.recoveries > bounds.recoveries:
        return MaxAttempts(
            f"this job was brought back {counted(bounds.recoveries, 'time')}, which is the bound (recovery.max_attempts in burst.yaml). "
            "Its newest commit stands: `spotburst describe JOB` says how a new job goes on from it"
        )
    return None
