"""What the manager does now, in a line, for ``systemctl status``."""

from __future__ import annotations

from collections.abc import Iterable

from job_wrapper.counted import counted
from slurm_plugin.reconcile.view import View

SHOWN = 3
"""Faults that are named; of more, how many."""


def status_line(view: View | None, faults: Iterable[str]) -> str:
    """``faults``: what is not well, by name. ``view`` is None where there was none to be had."""
    lasting = sorted(faults)
    down = f"; not well: {', '.join(lasting[:SHOWN])}" if lasting else ""
    if len(lasting) > SHOWN:
        down += f" and {len(lasting) - SHOWN} more"
    if view is None:
        return "acting" + down
    counts = (
        (sum(job.running for job in view.jobs or ()), "job"),
        (len(view.intents), "machine"),
        (len(view.notices), "reclaim"),
        (len(view.replacements), "replacement"),
        (len(view.requests), "request"),
    )
    shown = [counted(n, word) for n, word in counts if n or word in ("job", "machine")]
    return f"acting: {', '.join(shown)}{down}"
