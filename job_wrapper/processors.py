"""How many processors this process may run on."""

from __future__ import annotations

import os


def processors() -> int:
    """By its affinity mask, as Slurm's task/affinity and cpusets set it; at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
