"""``spotburst checkpoints delete`` and ``prune``: give the space of runs back that nobody will go on from."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated

import typer

from job_wrapper.counted import counted
from job_wrapper.errors import RunHeld, UsageError
from job_wrapper.run.local_job import local_job_alive
from job_wrapper.store.freeing import DELETED, Sweep, Swept, free, is_freed, require_owner, size_of
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.cli import output
from slurm_plugin.cli.source import (
    ClusterOption,
    ConfigOption,
    EndpointOption,
    JobArgument,
    JsonOption,
    NameOption,
    UriOption,
    open_run,
    place,
    settings,
    slurm_job,
)
from slurm_plugin.config import Config
from slurm_plugin.requeue import ENDED_STATES
from slurm_plugin.slurm.records import Job

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_SLURM_ID = re.compile(r"\d+(_\d+)?\Z")
_QUIET = 86400.0
"""Seconds without an entry after which a program that nobody can look for is taken for dead."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)([hd]?)\Z")


def delete(
    job: JobArgument,
    name: NameOption = None,
    yes: YesOption = False,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete all checkpoints of a job's run.

    Its log stays, so that no attempt that is still out there can write to it any more. A job that still runs or waits is refused.
    """
    found = open_run(job, name, uri, endpoint_url, cluster, config)
    store, run = found.where.store, found.path
    last = found.log.tail()
    if last is None:
        raise UsageError(f"{job}: this run has no log entry: there is nothing to delete")
    require_owner(store, run)
    _refuse_alive(found.config, run, last)
    size = size_of(store, run)
    if is_freed(last) and not size:
        _deleted(json, run, 0, "nothing to delete: its checkpoints are gone already")
        return
    what = f"all checkpoints of {store.uri}/{run} ({output.size(size)})"
    if last.summary.ended is None:
        what += ", which has not finished and could be gone on with"
    _ask(f"Delete {what}?", yes)
    freed = free(store, run, last, DELETED)
    _deleted(json, run, freed, f"deleted {output.size(freed)} of {run}")


def _deleted(json: bool, run: str, freed: int, text: str) -> None:
    if json:
        output.as_json({"run": run, "size": freed})
    else:
        output.console().print(text)


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="How long ago a run must have ended, such as 7d or 12h.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    yes: YesOption = False,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the checkpoints of runs that ended long ago.

    The manager does the same every hour for the store of burst.yaml; this is for other stores, and for sites without a manager.
    """
    where = place(settings(config), uri, endpoint_url, cluster)
    sweep = Sweep(where.store, where.cluster, age=_seconds(older_than))
    due = [(run, entry, size_of(where.store, run)) for run, entry in sweep.due()]
    due = [(run, entry, size) for run, entry, size in due if size]
    if due and not dry_run:
        total = output.size(sum(size for _, _, size in due))
        _ask(
            f"Delete the checkpoints of {counted(len(due), 'run')} that ended more than {older_than} ago ({total})?",
            yes,
        )
    rows = [Swept(run, entry.time, size) if dry_run else sweep.one(run, entry) for run, entry, size in due]
    if json:
        output.as_json([{**row._asdict(), "deleted": not dry_run and not row.error} for row in rows])
    elif not rows:
        output.console().print(f"no run in {where.store.uri}/{where.cluster} ended more than {older_than} ago")
    else:
        done = "no" if dry_run else "yes"
        output.table(
            ("RUN", "ENDED", "SIZE", "DELETED"),
            ([row.run, output.moment(row.ended), output.size(row.size), row.error or done] for row in rows),
        )
    if any(row.error for row in rows):
        raise typer.Exit(1)


def _seconds(text: str) -> float:
    match = _AGE.match(text)
    if match is None:
        raise UsageError(f"--older-than {text}: write a number with h or d, such as 12h or 7d")
    return float(match[1]) * (3600.0 if match[2] == "h" else 86400.0)


def _ask(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is nobody to ask here: say it with --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _refuse_alive(config: Config | None, run: str, last: Entry) -> None:
    """Raises ``RunHeld``."""
    job_id = last.writer.job_id
    in_slurm = last.kind is not Kind.END and _SLURM_ID.match(job_id) is not None
    shown, error = slurm_job(config, job_id) if in_slurm else (None, None)
    why = still_alive(last, shown, error, local_job_alive(job_id), time.time())
    if why is not None:
        raise RunHeld(f"{run}: {why}")


def still_alive(last: Entry, shown: Job | None, slurm_error: str | None, local: bool, now: float) -> str | None:
    """Why a run with this newest entry may still go on; None if it surely will not. Pure.

    ``shown``: its job as Slurm shows it; ``slurm_error``: why Slurm can't be asked; ``local``: its process runs on this machine.
    Were this wrong, the log would stop the program, and harm nobody after it.
    """
    job_id = last.writer.job_id
    if last.kind is Kind.END:
        return None
    if local:
        return f"its program runs here (process {job_id.split('-')[1]}): end it first"
    if not _SLURM_ID.match(job_id):
        if now - last.time >= _QUIET:
            return None
        return (
            f"a program outside Slurm on {last.writer.host} wrote to it {output.duration(now - last.time)} ago and may still run. "
            "Wait a day after its end"
        )
    if slurm_error is not None:
        return f"Slurm can't be asked whether job {job_id} still goes on ({slurm_error}); try again when it can"
    if shown is not None and not shown.has(*ENDED_STATES):
        state = "+".join(sorted(shown.states)).lower()
        return f"job {job_id} is {state} and goes on from these checkpoints. Cancel it first: scancel {job_id}"
    return None
