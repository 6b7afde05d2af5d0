"""``spotburst describe JOB``: who, where, in what state, what happened, what happens next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from job_wrapper.errors import UsageError
from job_wrapper.interval import Interval
from job_wrapper.run.counters import ATTRIBUTE as PROGRESS
from job_wrapper.run.counters import counters_of
from job_wrapper.store import RunLog
from job_wrapper.store.io_types import CommitRef, Entry
from slurm_plugin.cli import output, story
from slurm_plugin.cli.attempts import attempts_of
from slurm_plugin.cli.charges import charged
from slurm_plugin.cli.considered import considered_for
from slurm_plugin.cli.job_ids import is_job_id
from slurm_plugin.cli.memory import costs
from slurm_plugin.cli.offerings import Row, price_text
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
    writers_job,
)
from slurm_plugin.prices import Cost, total


def command(
    job: JobArgument,
    name: NameOption = None,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show a job: state, history, what comes next."""
    known = settings(config)
    shown, slurm_error = slurm_job(known, job) if is_job_id(job) else (None, None)
    entries: list[Entry] = []
    address = run = None
    try:
        where = place(known, uri, endpoint_url, cluster)
        run = find_run(where, job, name, shown)
        entries = RunLog(where.store, run).entries()
        address = f"{where.store.uri}/{run}"
    except UsageError as error:
        # A job that waits for the first time has no run yet, and a new cluster's store may have no folder yet.
        if shown is None and is_job_id(job):
            raise unknown(job, slurm_error, error) from None
        if shown is None or name is not None or uri is not None:
            raise
    if not is_job_id(job):
        shown, slurm_error = writers_job(known, entries[-1] if entries else None)
    made = attempts_of(entries, shown)
    newest = entries[-1].summary.commits[-1] if entries and entries[-1].summary.commits else None
    told = sorted([*story.timeline(entries), *decisions(known, job, shown)])
    pace = story.interval(entries)
    next_words = story.outlook(shown, slurm_error, entries, run)
    paid, currency = costs(known, made, time.time())
    whole, charges = total(paid), charged(known, job, shown)
    considered = considered_for(known, shown, entries[-1] if entries else None) if known is not None else []
    if json:
        output.as_json(
            {
                "job": job,
                "run": address,
                "user": shown.user if shown else None,
                "partition": shown.partition if shown else None,
                "states": sorted(shown.states) if shown else None,
                "reason": shown.reason if shown else None,
                "nodes": shown.nodes if shown else None,
                "slurm_error": slurm_error,
                "state": story.state(shown, slurm_error, entries),
                "attempts": len(made),
                "summary": entries[-1].summary if entries else None,
                "newest_commit": None
                if newest is None
                else {"entry": newest.seq, "epoch": newest.epoch, "step": newest.step, "time": newest.time},
                "timeline": [{"time": when, "text": text} for when, text in told],
                "next": next_words,
                "cost": asdict(whole) | {"currency": currency},
                "charged": charges,
                "offerings": considered,
                "interval": pace._asdict() if pace is not None else None,
            }
        )
        return
    last = made[-1] if made else None
    output.facts(
        [
            ("Job", f"{job} ({shown.name}) of {shown.user}, partition {shown.partition}" if shown else job),
            ("Run", address),
            ("State", story.state(shown, slurm_error, entries)),
            (
                "Node",
                ", ".join(shown.nodes)
                if shown and shown.nodes
                else last.node
                if last and last.why == "running"
                else None,
            ),
            ("Offering", last.offering if last else None),
            ("Checkpoint", _checkpoint(newest, entries) if newest else "none yet"),
            ("Interval", _interval(pace)),
            ("Next", next_words),
            ("Cost", _cost(whole, currency)),
            ("Charged", charges.text(currency) if charges else None),
            ("Comment", shown.comment if shown else None),
        ]
    )
    if told:
        output.console().print()
    output.lines("Offerings, in the order in which they are asked now", map(_offering, considered))
    output.lines("Timeline", (f"{output.moment(when, tenths=True)}  {text}" for when, text in told))


def unknown(job: str, slurm_error: str | None, error: UsageError) -> UsageError:
    """What is said of a job that Slurm does not show, or can't be asked about, and that has no run. Pure."""
    if slurm_error is not None:
        return UsageError(f"{error}. Slurm can't be asked about job {job}: {slurm_error}")
    return UsageError(
        f"Slurm does not know job {job}: there is none of that number, or it ended some minutes ago, or others' jobs are hidden here. "
        f"{error}"
    )


def _cost(whole: Cost, currency: str) -> str | None:
    if not whole.hours or (whole.paid is None and whole.on_demand is None):
        return None
    paid = output.money(whole.paid, currency) or "unknown"
    usual = output.money(whole.on_demand, currency) or "unknown"
    return f"{paid} a machine so far; on-demand: {usual}"


def _offering(row: Row) -> str:
    price = f", {price_text(row)}" if row.price is not None else ""
    if row.place is not None:
        return f"{row.place}. {row.offering}{price}" + (f": asked late, {row.why}" if row.why else "")
    again = f", again at {output.moment(row.until)}" if row.until else ""
    return f"-  {row.offering}{price}: {row.state}{again}: {row.why}"


def _interval(told: Interval | None) -> str | None:
    return None if told is None else f"{output.duration(told.seconds)}: {told.why}"


def _checkpoint(newest: CommitRef, entries: Sequence[Entry]) -> str:
    body = next((entry.body for entry in reversed(entries) if entry.seq == newest.seq), {})
    counters = counters_of(body.get(PROGRESS))
    of = f" of {counters.total}" if counters and counters.total and newest.step is not None else ""
    at = f"step {newest.step}{of}, " if newest.step is not None else ""
    return f"{at}entry {newest.seq}, {output.duration(max(0.0, time.time() - newest.time))} ago"
