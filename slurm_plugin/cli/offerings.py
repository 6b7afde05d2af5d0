"""``spotburst offerings``: what can be bought, in what order, what stands against it; and ``clear``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from job_wrapper.errors import UsageError
from slurm_plugin.cli import completion, output
from slurm_plugin.cli.memory import Remembered, remembered
from slurm_plugin.cli.source import ConfigOption, JsonOption, needed_settings
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.config import Config, NodeSet
from slurm_plugin.placement import Knowledge, Need, Passed, plan
from slurm_plugin.prices import Priced, priced

app = typer.Typer(
    invoke_without_command=True, help="Show what can be bought, in what order, and what stands against it."
)
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Row:
    """One offering of one nodeset. ``place`` is its place in the order (from 1), None while it is passed over."""

    nodeset: str
    place: int | None
    offering: str
    state: str
    """``ready``, ``last`` (its zone was reclaimed a short while ago) or why it is passed over: ``cooling``, ``stopped``, ``blocked``, ``excluded``, ``too small``."""
    until: float | None
    """Unix seconds at which it may be asked again; None where that is now, or never by itself."""
    price: float | None
    currency: str
    price_from: str | None
    """``live``, ``table``, or ``on-demand`` (an upper bound)."""
    interruptions_a_day: float
    """Estimated, of one machine."""
    hours: float
    launches: int
    reclaims: int
    refusals: int
    why: str
    machine: MachineSize | None
    """What its machine has by its cloud's description; None where that is not known."""


def rows(config: Config, nodeset: NodeSet, known: Remembered, need: Need, now: float) -> list[Row]:
    """A nodeset's offerings, those to be asked first in their order, the others after them."""
    offerings = config.offerings_of(nodeset)
    costs = {o.id: priced(o, known.table, known.live) for o in offerings}
    knowledge = Knowledge(
        {id_: price.price for id_, price in costs.items() if price is not None},
        known.seen,
        config.gpus_of(nodeset),
        known.sizes,
        config.scattered(),
    )
    found = plan(offerings, known.states, now, (), config.rules_of(nodeset), need, knowledge, nodeset.size)
    by_id = {o.id: o for o in offerings}
    listed = []
    passed = {choice.offering_id: choice for choice in found.passed}
    for index, id_ in enumerate((*found.ready, *passed)):
        offering, choice, seen = by_id[id_], passed.get(id_), known.seen.get(id_)
        state = known.states.get(id_)
        last = state is not None and state.reclaimed_until > now
        until = choice.until if choice else state.reclaimed_until if state and last else None
        listed.append(
            Row(
                nodeset=nodeset.name,
                place=None if choice else index + 1,
                offering=id_,
                state=choice.kind.value if choice else "last" if last else "ready",
                until=until if until is not None and math.isfinite(until) else None,
                **_price(costs[id_], known),
                interruptions_a_day=knowledge.rate(offering) * 24.0,
                hours=seen.hours if seen else 0.0,
                launches=seen.launches if seen else 0,
                reclaims=seen.reclaims if seen else 0,
                refusals=seen.refusals if seen else 0,
                why=choice.why if choice else "its zone was reclaimed a short while ago" if last else "",
                machine=known.sizes.get(id_),
            )
        )
    return listed


def _price(price: Priced | None, known: Remembered) -> Mapping[str, Any]:
    return {
        "price": price.price if price else None,
        "currency": known.currency,
        "price_from": price.source if price else None,
    }


def price_text(row: Row) -> str | None:
    """``1.2 USD/h``; an upper bound says so, what is not known is None."""
    if row.price is None:
        return None
    return f"{'<= ' if row.price_from == 'on-demand' else ''}{row.price:g} {row.currency}/h"


@app.callback()
def command(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show each nodeset's offerings in the order in which they are asked, their prices, and how often they were taken back."""
    if context.invoked_subcommand is not None:
        return
    known = needed_settings(config)
    memory = remembered(known)
    now = time.time()
    listed = [row for nodeset in known.nodesets for row in rows(known, nodeset, memory, Need(), now)]
    if json:
        output.as_json(listed)
        return
    output.table(
        (
            "NODESET",
            "ASKED",
            "OFFERING",
            "STATE",
            "AGAIN IN",
            "PRICE",
            "TAKEN BACK A DAY",
            "MACHINE HOURS",
            "RECLAIMS",
            "REFUSED",
            "WHY",
        ),
        (
            [
                row.nodeset,
                row.place,
                row.offering,
                row.state,
                output.duration(row.until - now) if row.until else None,
                price_text(row),
                f"{row.interruptions_a_day:.2g}",
                round(row.hours, 1),
                row.reclaims,
                row.refusals,
                row.why,
            ]
            for row in listed
        ),
    )
    notes = [memory.missing] if memory.missing else []
    if memory.table is not None:
        notes.append(f"prices of {known.prices} are of {memory.table.date}")
    if any(row.state == Passed.PERMANENT.value for row in listed):
        notes.append(
            "what is blocked is not asked again until its settings change or `spotburst offerings clear OFFERING`"
        )
    for note in notes:
        typer.echo(f"spotburst: {note}", err=True)


@app.command("clear")
def clear(
    offering: Annotated[
        str,
        typer.Argument(
            metavar="OFFERING",
            help="As `spotburst offerings` shows it, or `all`.",
            autocompletion=completion.offerings,
        ),
    ],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let an offering be asked again at once, once what stood against it has been seen to."""
    from slurm_plugin.ledger import Ledger

    known = needed_settings(config)
    ids = sorted({o.id for n in known.nodesets for o in known.offerings_of(n)})
    if offering != "all" and offering not in ids:
        raise UsageError(f"{offering}: no such offering in burst.yaml; there are: {', '.join(ids)}, or all")
    path = known.state_dir / "ledger.db"
    Ledger.open_readonly(path).close()  # the manager makes it, nobody else
    ledger = Ledger.open(path)
    try:
        cleared = [id_ for id_ in (ids if offering == "all" else [offering]) if ledger.clear_offering(id_)]
    finally:
        ledger.close()
    if json:
        output.as_json(cleared)
    else:
        print("\n".join(f"{id_}: may be asked again" for id_ in cleared) or "nothing stood against it")
