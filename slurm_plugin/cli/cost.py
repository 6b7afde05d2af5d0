"""``spotburst cost JOB``: what a run cost, attempt by attempt, and what on-demand machines would have for the same time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from slurm_plugin.cli import output
from slurm_plugin.cli.attempts import attempts_of
from slurm_plugin.cli.charges import Charged, charged
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
from slurm_plugin.config import Config
from slurm_plugin.prices import Cost, total
from slurm_plugin.slurm.records import Job
from slurm_plugin.timeline import Attempt


@dataclass(frozen=True, slots=True)
class Bill:
    """Of each attempt its machines and what they cost, all together. ``charged``: see `charges`."""

    machines: list[int]
    costs: list[Cost]
    currency: str
    charged: Charged | None


def command(
    job: JobArgument,
    name: NameOption = None,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a run cost, by attempt and in all, beside on-demand.

    COST is the price that held when the attempt began, times its time, times its machines; ON DEMAND the same at the on-demand price. Charged
    is what the manager counts for a cost limit: the time in which machines boot is in it.
    """
    found = open_run(job, name, uri, endpoint_url, cluster, config, ask_slurm=True)
    made = attempts_of(found.log.entries(), found.shown)
    told = bill(found.config, job, found.shown, made, time.time())
    machines, costed, currency, counted = told.machines, told.costs, told.currency, told.charged
    whole = total(costed)
    if json:
        output.as_json(
            {
                "job": job,
                "run": f"{found.where.store.uri}/{found.path}",
                "currency": currency,
                "attempts": [
                    {
                        "epoch": one.epoch,
                        "job_id": one.job_id,
                        "restart_count": one.restart_count,
                        "node": one.node,
                        "offering": one.offering,
                        "started": one.started,
                        "why": one.why,
                        "machines": count,
                        **_values(price),
                    }
                    for one, count, price in zip(made, machines, costed, strict=True)
                ],
                "total": _values(whole),
                "charged": counted,
            }
        )
        return
    if not made:
        output.console().print("no attempt yet")
        return
    output.table(
        ("EPOCH", "JOB", "RESTART", "NODE", "OFFERING", "MACHINES", "HOURS", "COST", "ON DEMAND", "SAVED"),
        [
            *(
                [one.epoch, one.job_id, one.restart_count, one.node, one.offering, count, *_cells(price, currency)]
                for one, count, price in zip(made, machines, costed, strict=True)
            ),
            ["all", None, None, None, None, None, *_cells(whole, currency)],
        ],
    )
    output.console().print()
    output.facts([("Saved", _share(whole)), ("Charged", counted.text(currency) if counted else None)])
    if unknown := sorted(
        {
            one.offering or "a node without an offering"
            for one, price in zip(made, costed, strict=True)
            if price.paid is None
        }
    ):
        print(f"spotburst: no price is known of {', '.join(unknown)} (docs/placement.md: prices)", file=sys.stderr)


def machines_of(attempt: Attempt, shown: Job | None, counted: Charged | None) -> int:
    """How many machines an attempt had: as the manager charged it for, else as Slurm shows its job, else as its wrapper told. Pure."""
    for one in counted.attempts if counted is not None else ():
        if one.restart_count == attempt.restart_count:
            return one.machines
    mine = shown is not None and attempt.job_id in (shown.name_id, str(shown.job_id))
    return max(1, shown.node_count) if shown is not None and mine else attempt.machines


def bill(config: Config | None, job: str, shown: Job | None, made: Sequence[Attempt], now: float) -> Bill:
    """Of these attempts of the job."""
    one_machine, currency = costs(config, made, now)
    counted = charged(config, job, shown)
    machines = [machines_of(one, shown, counted) for one in made]
    costed = [price.times(count) for price, count in zip(one_machine, machines, strict=True)]
    return Bill(machines, costed, currency, counted)


def _values(price: Cost) -> dict[str, float | None]:
    return asdict(price) | {"saved": price.saved}


def _cells(price: Cost, currency: str) -> list[str | None]:
    money = (price.paid, price.on_demand, price.saved)
    return [f"{price.hours:.2f}", *(output.money(amount, currency) for amount in money)]


def _share(whole: Cost) -> str | None:
    if whole.saved is None or not whole.on_demand:
        return None
    return f"{100 * whole.saved / whole.on_demand:.0f} % of what on-demand machines would have cost for the same time"
