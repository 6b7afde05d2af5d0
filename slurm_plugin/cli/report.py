"""``spotburst report JOB``: one run's time line, curves, saved and lost time, and cost; as text, JSON, or one page of HTML."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from job_wrapper.errors import UsageError
from slurm_plugin.cli import output, story
from slurm_plugin.cli.attempts import as_slurm_sees
from slurm_plugin.cli.charges import charged
from slurm_plugin.cli.cost import machines_of, of_all
from slurm_plugin.cli.memory import costs
from slurm_plugin.cli.source import (
    ClusterOption,
    ConfigOption,
    EndpointOption,
    JobArgument,
    JsonOption,
    NameOption,
    UriOption,
    decisions,
    find_run,
    place,
    settings,
    slurm_job,
)
from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.prices import Cost
from slurm_plugin.report.whole import Whole, whole
from slurm_plugin.slurm.records import Job
from slurm_plugin.timeline import attempts

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
    from job_wrapper.store import RunLog

    known = settings(config)
    shown, slurm_error = slurm_job(known, job)
    where = place(known, uri, endpoint_url, cluster)
    run = find_run(where, job, name, shown)
    entries = RunLog(where.store, run).entries()
    made = attempts(entries)
    made[-1:] = [as_slurm_sees(one, shown) for one in made[-1:]]
    now = time.time()
    paid, currency = costs(known, made, now)
    pace = story.interval(entries)
    facts = [
        ("State", story.state(shown, slurm_error, entries)),
        ("User", shown.user if shown else None),
        ("Next", story.outlook(shown, slurm_error, entries, run)),
        ("Interval", f"{output.duration(pace.seconds)}: {pace.why}" if pace is not None else None),
        ("Comment", shown.comment if shown else None),
    ]
    charges = charged(known, job, shown)
    machines = [machines_of(one, shown, charges) for one in made]
    costed = [of_all(price, count) for price, count in zip(paid, machines, strict=True)]
    notes = list(_missing(known, shown, slurm_error, any(cost.paid is not None for cost in paid)))
    return whole(
        job, f"{where.store.uri}/{run}", entries, made, shown, facts,
        [Cost(row.hours, row.paid, row.on_demand) for row in costed], currency, machines,
        decisions(known, job, shown), notes, now,
    )  # fmt: skip


def _missing(known: Config | None, shown: Job | None, slurm_error: str | None, priced: bool) -> list[str]:
    notes = []
    if slurm_error is not None:
        notes.append(f"Slurm can't be asked, so the job's own state is not told: {slurm_error}")
    elif shown is None:
        notes.append("Slurm does not know the job any more: what is told is from the run's log.")
    if known is None:
        notes.append("There is no burst.yaml that this user may read: no prices, and nothing of what the manager did.")
        return notes
    fault = _ledger_fault(known)
    if fault:
        notes.append(f"The manager's ledger can't be read by this user ({fault}): its decisions are not told.")
    if not priced:
        notes.append(
            "Not all prices are known, so what it cost is not: burst.yaml's `prices` names a table of them."
            if known.prices is None
            else f"Not all prices are known, so what it cost is not: {known.prices} lacks some."
        )
    return notes


def _ledger_fault(known: Config) -> str:
    from slurm_plugin.ledger import Ledger

    path = known.state_dir / "ledger.db"
    try:
        Ledger.open_readonly(path).close()
    except OSError as error:
        return f"{path}: {error.strerror}"
    except ConfigError as error:
        return str(error)
    return ""


def _write(path: Path, text: str) -> None:
    """All or nothing. Raises ``UsageError``."""
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name a file")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            Path(temporary).chmod(0o666 & ~mask)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path}: can't be written: {error.strerror or error}") from error
