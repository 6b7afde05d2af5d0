"""``spotburst cancel JOB``: end a job; with ``--keep-checkpoint`` only once it has committed where it is."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from job_wrapper.errors import SpotburstError
from job_wrapper.run import asked
from job_wrapper.store.io_types import Kind
from slurm_plugin.cli import story
from slurm_plugin.cli.acting import (
    NotPossible,
    SlurmJobArgument,
    as_owner,
    commands,
    find_job,
    over,
    require_running,
    words,
)
from slurm_plugin.cli.outcome import Outcome, outcome
from slurm_plugin.cli.source import (
    ClusterOption,
    ConfigOption,
    EndpointOption,
    JsonOption,
    UriOption,
    place,
    settings,
)
from slurm_plugin.cli.target import KeptNameOption, WaitOption, newest, seconds, target
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.records import Job

ENDED_WITHIN = 60.0
"""Seconds that a cancelled job is waited for: it may commit once more while Slurm takes it down."""


def command(
    job: SlurmJobArgument,
    keep_checkpoint: Annotated[
        bool, typer.Option("--keep-checkpoint", help="First commit a checkpoint; if that fails, the job goes on.")
    ] = False,
    name: KeptNameOption = None,
    timeout: WaitOption = "10m",
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """End a job, and say how a new one goes on from its newest checkpoint."""
    patience, known = seconds(timeout), settings(config)
    look = partial(place, known, uri, endpoint_url, cluster)
    client = commands(known)
    shown = find_job(client.jobs(), job)
    if over(shown):
        raise NotPossible(f"job {job} has ended already ({words(shown)})")
    if keep_checkpoint and not shown.has("PENDING"):
        require_running(shown, f"there is no checkpoint to wait for. scancel {job} ends it all the same")
        wanted = target(shown, job, name, look())
        with as_owner(shown):
            client.signal(shown.name_id, asked.SIGNAL.name.removeprefix("SIG"))
        wanted.wait(Kind.COMMIT, client, patience)
    with as_owner(shown):
        client.end(shown.name_id)
    _wait_for_its_end(client, shown)
    last, run = newest(shown, job, name, look)
    rest = "" if run is None else story.by_hand(last, run)
    commit = last.summary.commits[-1] if last is not None and last.summary.commits else None
    outcome(json, Outcome.of(job, "cancelled", f"job {job} is cancelled. {rest}".rstrip(), run, commit))


def _wait_for_its_end(client: CliClient, job: Job) -> None:
    until = time.monotonic() + ENDED_WITHIN
    while time.monotonic() < until:
        try:
            shown = find_job(client.jobs(), job.name_id)
        except SpotburstError:
            return
        if over(shown) and not shown.has("COMPLETING"):
            return
        time.sleep(0.5)
