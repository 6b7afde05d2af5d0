"""``spotburst attempts JOB``: one line an attempt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from typing import Any

from job_wrapper.run.rules import ENDED
from job_wrapper.store.io_types import Entry
from slurm_plugin.cli import output
from slurm_plugin.cli.memory import costs
from slurm_plugin.cli.source import (
    ClusterOption,
    ConfigOption,
    EndpointOption,
    JobArgument,
    JsonOption,
    NameOption,
    UriOption,
    open_run,
)
from slurm_plugin.cli.story import lost_steps, outside_slurm
from slurm_plugin.slurm.records import Job
from slurm_plugin.timeline import Attempt, Gap, attempts, gap

_HEADINGS = (
    *(
        "EPOCH",
        "JOB",
        "RESTART",
        "STATE",
        "NODE",
        "OFFERING",
        "STARTED",
        "FROM STEP",
        "LAST STEP",
        "COMMITS",
        "ENDED",
        "LOST STEPS",
    ),
    *("TO COMMIT", "TO REQUEUE", "TO RUNNING", "COST", "ON DEMAND"),
)

_ENDS = {"running": None, "lost": "without a word", "finished": "exit 0"}


def command(
    job: JobArgument,
    name: NameOption = None,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show each attempt of a job and why it ended.

    TO COMMIT, TO REQUEUE and TO RUNNING count from the notice that ended the attempt, or without one from its last commit: to its last
    commit, to its requeue, and to the next attempt's program going on. COST and ON DEMAND are of one machine: what it cost, and what an on-demand one would have.
    """
    found = open_run(job, name, uri, endpoint_url, cluster, config, ask_slurm=True)
    shown = found.shown
    made = attempts_of(found.log.entries(), shown)
    followed = [
        (one, gap(one, after) if after else None, lost_steps(one, after)) for one, after in zip_longest(made, made[1:])
    ]
    paid, currency = costs(found.config, made, time.time())
    if json:
        output.as_json(
            [
                asdict(one)
                | {"state": _state(one, shown), "lost_steps": lost, "cost": asdict(price) | {"currency": currency}}
                | _seconds(one, between)
                for (one, between, lost), price in zip(followed, paid, strict=True)
            ]
        )
        return
    if not made:
        output.console().print("no attempt yet")
        return
    money = [[output.money(price.paid, currency), output.money(price.on_demand, currency)] for price in paid]
    output.table(
        _HEADINGS,
        (
            [*_row(one, between, lost, shown), *prices]
            for (one, between, lost), prices in zip(followed, money, strict=True)
        ),
    )


def _row(one: Attempt, between: Gap | None, lost: int | None, shown: Job | None) -> list[Any]:
    seconds = _seconds(one, between)
    return [
        one.epoch,
        one.job_id,
        one.restart_count,
        _state(one, shown),
        one.node,
        one.offering,
        output.moment(one.started),
        one.restored_step,
        one.last_step,
        one.commits,
        _ENDS.get(one.why, one.why),
        lost,
        *(output.duration(value) for value in seconds.values()),
    ]


def _seconds(one: Attempt, between: Gap | None) -> dict[str, float | None]:
    return {
        "notice_to_commit": one.notice_to_commit,
        "notice_to_requeue": between.notice_to_requeue if between else None,
        "notice_to_running": between.notice_to_resumed if between else None,
    }


def attempts_of(entries: Sequence[Entry], shown: Job | None) -> list[Attempt]:
    """All attempts of a run, oldest first, from its whole log and what Slurm shows of its job. Pure."""
    made = attempts(entries)
    made[-1:] = [as_slurm_sees(one, shown) for one in made[-1:]]  # there is none where one ended before its first entry
    return made


def as_slurm_sees(newest: Attempt, shown: Job | None) -> Attempt:
    """An attempt that the log leaves open is lost once Slurm has started another or given the job up."""
    if newest.why != "running" or shown is None or newest.job_id != shown.name_id:
        return newest
    gone = shown.restart_count > newest.restart_count or not shown.has("RUNNING", "COMPLETING", "SUSPENDED")
    return replace(newest, why="lost") if gone else newest


def _state(one: Attempt, shown: Job | None) -> str:
    """The job's state as of this attempt: Slurm's where it still runs, else what became of it."""
    if one.why == "running":
        known = shown is not None and shown.name_id == one.job_id and shown.has("RUNNING", "COMPLETING")
        return "+".join(sorted(shown.states)) if known and shown is not None else "running"
    if one.why in (ENDED, "cancelled", "timeout"):
        return "ended"
    if one.why in ("lost", "suspended", "finished"):
        return one.why
    if one.exit_code is not None:
        return f"exit {one.exit_code}"
    return "interrupted" if outside_slurm(one.job_id) else "requeued"
