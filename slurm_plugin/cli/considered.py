"""For ``describe``: which offerings are considered for one job now, and why each is asked or not."""

from __future__ import annotations

import time

from job_wrapper.store.io_types import Entry
from slurm_plugin.cli.memory import remembered
from slurm_plugin.cli.offerings import Row, rows
from slurm_plugin.config import Config
from slurm_plugin.ledger_records import WAITING
from slurm_plugin.reconcile.offers import situation
from slurm_plugin.requeue import left_of
from slurm_plugin.slurm.records import Job


def considered_for(config: Config, job: Job | None, newest: Entry | None) -> list[Row]:
    """Of the nodesets in the job's partitions; nothing of a job that is over, or that Slurm does not know.

    ``newest``: the newest entry of its run's log, which tells how much of its work is left.
    """
    if job is None or not job.has("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED"):
        return []
    wanted = {name for p in config.partitions if p.name in job.partitions for name in p.nodesets}
    memory, now = remembered(config), time.time()
    left = None if newest is None else left_of(newest)
    waits = memory.counters.get((f"job:{job.job_id}", WAITING))
    since = waits.last if waits else None
    found = []
    for nodeset in config.nodesets:
        if nodeset.name in wanted:
            found += rows(config, nodeset, memory, situation(job, since, left, now, config.rules_of(nodeset)), now)
    return found
