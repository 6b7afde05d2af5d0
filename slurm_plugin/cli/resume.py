"""``spotburst resume JOB``: let a job that was suspended go on from its newest checkpoint."""

from __future__ import annotations

from functools import partial

from slurm_plugin.cli.acting import NotPossible, SlurmJobArgument, as_owner, commands, find_job, over, words
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
from slurm_plugin.cli.target import at, newest
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
    last, run = newest(shown, job, None, partial(place, known, uri, endpoint_url, cluster))
    commit = last.summary.commits[-1] if last is not None and last.summary.commits else None
    goes_on = f", and goes on from {at(commit)}" if commit is not None else ""
    text = f"job {job} is released: it starts as soon as Slurm has a node for it{goes_on}"
    outcome(json, Outcome.of(job, "released", text, run, commit))


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
