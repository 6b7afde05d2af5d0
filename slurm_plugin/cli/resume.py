"""``spotburst resume JOB``: let a job that was suspended go on from its newest checkpoint."""

from __future__ import annotations

from job_wrapper.errors import SpotburstError
from job_wrapper.store import RunLog
from job_wrapper.store.io_types import CommitRef
from slurm_plugin.cli.acting import NotPossible, SlurmJobArgument, as_owner, commands, find_job, over, words
from slurm_plugin.cli.outcome import Outcome, outcome
from slurm_plugin.cli.source import (
    ClusterOption,
    ConfigOption,
    EndpointOption,
    JsonOption,
    UriOption,
    find_run,
    place,
    settings,
)
from slurm_plugin.cli.target import at
from slurm_plugin.config import Config
from slurm_plugin.slurm.records import Job


def command(
    job: SlurmJobArgument,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let a suspended or held job go on, as soon as Slurm has a node for it."""
    known = settings(config)
    client = commands(known)
    shown = find_job(client.jobs(), job)
    refusal = can_not_be_resumed(shown)
    if refusal is not None:
        raise NotPossible(f"job {job} {refusal}")
    nothing = nothing_to_resume(shown)
    if nothing is not None:
        outcome(json, Outcome(job, "unchanged", f"job {job} {nothing}"))
        return
    with as_owner(shown):
        client.release(shown.name_id)
    if not shown.has("PENDING"):
        outcome(json, Outcome(job, "running", f"job {job} goes on: it is no longer to be suspended"))
        return
    commit = _newest(shown, job, known, uri, endpoint_url, cluster)
    text = f"job {job} is released: it starts as soon as Slurm has a node for it"
    if commit is None:
        outcome(json, Outcome(job, "released", text))
    else:
        text += f", and goes on from {at(commit)}"
        outcome(json, Outcome(job, "released", text, step=commit.step, entry=commit.seq))


def can_not_be_resumed(job: Job) -> str | None:
    """Why nothing lets this job go on; None where something might. Pure."""
    if over(job):
        return f"has ended ({words(job)}): a new job goes on from its checkpoint; `spotburst describe {job.name_id}` says how"
    if job.has("SUSPENDED"):
        return (
            "was stopped by `scontrol suspend`, which keeps its nodes: scontrol resume (an administrator's) lets it run"
        )
    return None


def nothing_to_resume(job: Job) -> str | None:
    """Why there is nothing to do, such as that ``scontrol release`` did it; None if the job is held, or is still to be. Pure."""
    if job.priority == 0:
        return None
    if job.has("PENDING"):
        return f"is not held, it waits: {words(job)}. `spotburst describe {job.name_id}` says what for"
    return "is not to be suspended: there is nothing to resume"


def _newest(
    job: Job, typed: str, config: Config | None, uri: str | None, endpoint_url: str | None, cluster: str | None
) -> CommitRef | None:
    """The checkpoint that it goes on from, if that can be told from here."""
    try:
        where = place(config, uri, endpoint_url, cluster)
        tail = RunLog(where.store, find_run(where, typed, None, job)).tail()
    except SpotburstError:
        return None
    commits = tail.summary.commits if tail is not None else ()
    return commits[-1] if commits else None
