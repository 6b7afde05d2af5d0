"""``spotburst cost JOB``: what a run cost, attempt by attempt, and what on-demand machines would have for the same time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from slurm_plugin.cli import output
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
from slurm_plugin.prices import Cost
from slurm_plugin.slurm.records import Job
from slurm_plugin.timeline import Attempt, attempts


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt, or the whole run. Money in the currency of the prices, None where a price is not known."""

    hours: float
    """Machine hours: of each attempt's time from its start to its end, all its machines."""
    paid: float | None
    on_demand: float | None

    @property
    def saved(self) -> float | None:
        """Against on-demand; below 0 where spot has cost more."""
        return None if self.paid is None or self.on_demand is None else self.on_demand - self.paid

    def told(self) -> dict[str, float | None]:
        """For JSON."""
        return asdict(self) | {"saved": self.saved}


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
    made = attempts(found.log.entries())
    one_machine, currency = costs(found.config, made, time.time())
    counted = charged(found.config, job, found.shown)
    machines = [machines_of(one, found.shown, counted) for one in made]
    rows = [of_all(price, count) for price, count in zip(one_machine, machines, strict=True)]
    whole = total(rows)
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
                        **row.told(),
                    }
                    for one, count, row in zip(made, machines, rows, strict=True)
                ],
                "total": whole.told(),
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
                [one.epoch, one.job_id, one.restart_count, one.node, one.offering, count, *_cells(row, currency)]
                for one, count, row in zip(made, machines, rows, strict=True)
            ),
            ["all", None, None, None, None, None, *_cells(whole, currency)],
        ],
    )
    output.console().print()
    output.facts([("Saved", _share(whole)), ("Charged", counted.text(currency) if counted else None)])
    if unknown := sorted(
        {one.offering or "a node without an offering" for one, row in zip(made, rows, strict=True) if row.paid is None}
    ):
        print(f"spotburst: no price is known of {', '.join(unknown)} (docs/placement.md: prices)", file=sys.stderr)


def machines_of(attempt: Attempt, shown: Job | None, counted: Charged | None) -> int:
    """How many machines an attempt had: as the manager charged it for, else as Slurm shows its job, else as its wrapper told. Pure."""
    for one in counted.attempts if counted is not None else ():
        if one.restart_count == attempt.restart_count:
            return one.machines
    mine = shown is not None and attempt.job_id in (shown.name_id, str(shown.job_id))
    return max(1, shown.node_count) if shown is not None and mine else attempt.machines


def of_all(price: Cost, machines: int) -> Row:
    """One attempt's cost, from that of one of its machines. Pure."""
    paid, usual = price.paid, price.on_demand
    return Row(
        price.hours * machines,
        None if paid is None else paid * machines,
        None if usual is None else usual * machines,
    )


def total(rows: Sequence[Row]) -> Row:
    """Of a whole run. One unknown part makes a sum unknown. Pure."""

    def added(parts: Sequence[float | None]) -> float | None:
        known = [part for part in parts if part is not None]
        return sum(known) if known and len(known) == len(parts) else None

    return Row(
        sum(row.hours for row in rows), added([row.paid for row in rows]), added([row.on_demand for row in rows])
    )


def _cells(row: Row, currency: str) -> list[str | None]:
    money = (row.paid, row.on_demand, row.saved)
    return [f"{row.hours:.2f}", *(output.money(amount, currency) for amount in money)]


def _share(whole: Row) -> str | None:
    if whole.saved is None or not whole.on_demand:
        return None
    return f"{100 * whole.saved / whole.on_demand:.0f} % of what on-demand machines would have cost for the same time"
