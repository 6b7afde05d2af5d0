"""``spotburst report JOB``: one run's time line, curves, saved and lost time, and cost; as text, JSON, or one page of HTML."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from job_wrapper.errors import UsageError
from slurm_plugin.cli import output, story
from slurm_plugin.cli.attempts import attempts_of
from slurm_plugin.cli.cost import bill
from slurm_plugin.cli.from_ledger import from_ledger
from slurm_plugin.cli.source import (
    ClusterOption,
    ConfigOption,
    EndpointOption,
    JobArgument,
    JsonOption,
    NameOption,
    UriOption,
    decisions,
    open_run,
)
from slurm_plugin.config import Config
from slurm_plugin.place_files import put
from slurm_plugin.report.whole import Whole, whole
from slurm_plugin.slurm.records import Job

HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write one page that needs nothing else to FILE; - for standard output."),
]  # fmt: skip


def command(
    job: JobArgument,
    html: HtmlOption = None,
    name: NameOption = None,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a run did with its time and money, across all its attempts.

    The page of --html is one file without anything from elsewhere: it can be mailed, printed, and opened anywhere.
    """
    if json and html is not None:
        raise UsageError("give --json or --html, not both")
    told = gather(job, name, uri, endpoint_url, cluster, config)
    if json:
        output.as_json(told.as_json())
    elif html is None:
        from slurm_plugin.report.text import show

        show(told)
    else:
        from slurm_plugin.report.html import render

        text = render(told)
        if str(html) == "-":
            print(text)
        else:
            _write(html, text)
            print(html)


def gather(
    job: str, name: str | None, uri: str | None, endpoint_url: str | None, cluster: str | None, config: Path | None
) -> Whole:
    """Ask the store, Slurm and the ledger; what this user may not read, or is not there, stands in the notes. Raises as `open_run` does."""
    found = open_run(job, name, uri, endpoint_url, cluster, config, ask_slurm=True)
    known, shown, slurm_error = found.config, found.shown, found.slurm_error
    entries = found.log.entries()
    made = attempts_of(entries, shown)
    now = time.time()
    paid = bill(known, job, shown, made, now)
    pace = story.interval(entries)
    facts = [
        ("State", story.state(shown, slurm_error, entries)),
        ("User", shown.user if shown else None),
        ("Next", story.outlook(shown, slurm_error, entries, found.path)),
        ("Interval", f"{output.duration(pace.seconds)}: {pace.why}" if pace is not None else None),
        ("Comment", shown.comment if shown else None),
    ]
    outside = story.ran_outside_slurm(entries[-1] if entries else None)
    notes = list(_missing(known, shown, slurm_error, outside, any(cost.paid is not None for cost in paid.costs)))
    return whole(
        job, f"{found.where.store.uri}/{found.path}", entries, made, shown, facts, paid.costs, paid.currency, paid.machines,
        decisions(known, job, shown), notes, now,
    )  # fmt: skip


def _missing(
    known: Config | None, shown: Job | None, slurm_error: str | None, outside: bool, priced: bool
) -> list[str]:
    notes = []
    if slurm_error is not None and not outside:
        notes.append(f"The job's own state is not told: {slurm_error}.")
    elif shown is None and not outside:
        notes.append("Slurm does not know the job any more: what is told is from the run's log.")
    if known is None:
        notes.append("There is no burst.yaml that this user may read: no prices, and nothing of what the manager did.")
        return notes
    _, fault = from_ledger(known, lambda _: None)
    if fault:
        notes.append(f"The manager's ledger can't be read by this user ({fault}): its decisions are not told.")
    if not priced:
        notes.append(
            "Not all prices are known, so what it cost is not: burst.yaml's `prices` names a table of them."
            if known.prices is None
            else f"Not all prices are known, so what it cost is not: {known.prices} lacks some."
        )
    return notes


def _write(path: Path, text: str) -> None:
    """All or nothing. Raises ``UsageError``."""
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name a file")
        mask = os.umask(0)
        os.umask(mask)
        put(path, text, 0o666 & ~mask)
    except OSError as error:
        raise UsageError(f"{path}: can't be written: {error.strerror or error}") from error
