"""For ``describe``: which offerings are considered for one job now, and why each is asked or not."""

from __future__ import annotations

import time

from slurm_plugin.cli.memory import remembered
from slurm_plugin.cli.offerings import Row, rows
from slurm_plugin.config import Config
from slurm_plugin.placement import Need
from slurm_plugin.slurm.records import Job


def considered_for(config: Config, job: Job | None) -> list[Row]:
    """Of the nodesets in the job's partitions; nothing of a job that is over, or that Slurm does not know."""
    if job is None or not job.has("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED"):
        return []
    wanted = {name for p in config.partitions if p.name in job.partition.split(",") for name in p.nodesets}
    memory, now = remembered(config), time.time()
    since = memory.waits.get(job.job_id)
    need = Need(
        failures=job.restart_count,
        waited=0.0 if since is None else max(0.0, now - since),
        remaining=float(job.time_limit) or None,
        deadline=float(job.deadline) or None,
    )
    return [row for n in config.nodesets if n.name in wanted for row in rows(config, n, memory, need, now)]
