"""``spotburst plan``: what one reclaim costs, which interval, and which fallback; before anything runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from job_wrapper.durations import seconds_of
from job_wrapper.errors import UsageError
from job_wrapper.interval import LONGEST, SHORTEST, UNMEASURED, USUAL_RATES, Interval, Saved
from slurm_plugin.cli import completion, output
from slurm_plugin.cli.memory import Remembered, remembered
from slurm_plugin.cli.offerings import Row, rows
from slurm_plugin.cli.source import JsonOption, needed_settings
from slurm_plugin.cloud.provider import Market
from slurm_plugin.config import Config, NodeSet, Recovery
from slurm_plugin.placement import Need, OfferingState, same_zone
from slurm_plugin.planning import Fallback, Line, Work, auto, fallback, line, without
from slurm_plugin.prices import priced

MOST = 1_000_000
"""Of hours, GPUs, machines, money an hour."""
SHOWN = (3600.0, 1800.0, 900.0)
"""Seconds: intervals to compare with, where none is given."""
_BEGINNING = "a run begins with it; --save-time shows what it comes to once a save is timed"
"""Why, where the plan is not told what a save costs."""


@dataclass(frozen=True, slots=True)
class Known:
    """What burst.yaml and the manager's ledger tell of a nodeset. Prices are of one machine an hour."""

    first: Row
    """Asked first now."""
    then: Row | None
    """Asked first once that one's zone has been reclaimed."""
    on_demand: float | None
    currency: str


def known_of(config: Config, nodeset: NodeSet, memory: Remembered, now: float) -> Known:
    """The nodeset's offerings as they are asked now. Raises ``UsageError`` where none may be."""
    listed = [row for row in rows(config, nodeset, memory, Need(), now) if row.place is not None]
    if not listed:
        raise UsageError(f"{nodeset.name}: none of its offerings may be asked now (`spotburst offerings` tells why)")
    offerings = config.offerings_of(nodeset)
    first = next(o for o in offerings if o.id == listed[0].offering)
    hit = {
        id_: replace(memory.states.get(id_) or OfferingState(id_), reclaimed_until=now + 600.0)
        for id_ in same_zone(first, offerings)
    }
    after = rows(config, nodeset, replace(memory, states={**memory.states, **hit}), Need(), now)
    then = next((row for row in after if row.place is not None and row.offering != first.id), None)
    usual = [
        found.price
        for o in offerings
        if o.market is Market.ON_DEMAND and (found := priced(o, memory.table, memory.live)) is not None
    ]
    table = memory.table.price(first, Market.ON_DEMAND) if memory.table is not None else None
    return Known(listed[0], then, min(usual, default=table), memory.currency)


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def command(
    hours: Annotated[float, typer.Option("--hours", min=0.001, help="Of work, without any interruption.")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many are paid for, where --price is of one.")] = 1,
    price: Annotated[float | None, typer.Option("--price", min=0.0, help="Of each GPU (or machine) an hour.")] = None,
    on_demand_price: Annotated[
        float | None, typer.Option("--on-demand-price", min=0.0, help="The same on-demand, to find the fallback.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines of the job: one taken back stops all.")] = 1,
    nodeset: Annotated[
        str | None,
        typer.Option(
            "--nodeset",
            help="Of burst.yaml: its prices, rates and offerings, where not given here.",
            autocompletion=completion.nodesets,
        ),
    ] = None,
    reclaims: Annotated[
        float | None, typer.Option("--reclaims-a-day", min=0.0, help="Of one machine (default: as was seen, else 1).")
    ] = None,
    reclaimed_at: Annotated[
        float | None, typer.Option("--reclaimed-at", min=0.0, help="Hours of work done at the reclaim (default: 3/4).")
    ] = None,
    save_time: Annotated[
        str | None,
        typer.Option("--save-time", help="That a save stops the program, such as 30s (`spotburst describe`)."),
    ] = None,
    upload_time: Annotated[
        str, typer.Option("--upload-time", help="Until it is committed, beside the program.")
    ] = "0s",
    restore_time: Annotated[
        str, typer.Option("--restore-time", help="From the reclaim until the program works again.")
    ] = "0s",
    interval: Annotated[
        list[str] | None, typer.Option("--interval", help="To compare; several times (default: 1h, 30m, 15m).")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="burst.yaml; else looked for beside slurm.conf.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what a reclaim costs with and without checkpoints, which interval loses least, and when to fall back to on-demand."""
    known, bounds = None, Recovery()
    _refuse_odd({"--hours": hours, "--price": price, "--on-demand-price": on_demand_price})
    _refuse_odd({"--gpus": gpus, "--nodes": nodes, "--reclaims-a-day": reclaims, "--reclaimed-at": reclaimed_at})
    if nodeset is not None:
        settings = needed_settings(config)
        found = next((n for n in settings.nodesets if n.name == nodeset), None)
        if found is None:
            names = ", ".join(n.name for n in settings.nodesets)
            raise UsageError(f"--nodeset {nodeset}: no such nodeset in burst.yaml; there are: {names}")
        known, bounds = known_of(settings, found, remembered(settings), time.time()), settings.recovery
    count = gpus
    if price is None:
        if known is None or known.first.price is None:
            what = "no price is known" if known is None else f"no price of {known.first.offering} is known"
            raise UsageError(f"{what}: give --price, or --nodeset with prices in burst.yaml (docs/placement.md)")
        price, count = known.first.price, nodes
    at = 0.75 * hours if reclaimed_at is None else reclaimed_at
    if at > hours:
        raise UsageError(f"--reclaimed-at {at:g}: after the end, which is at {hours:g} hours")
    a_day = reclaims if reclaims is not None else known.first.interruptions_a_day if known else 24 * USUAL_RATES["spot"]
    saved = None if save_time is None else Saved(_seconds(save_time), _seconds(upload_time))
    # Never 0: a mean time between interruptions is divided by.
    rate = max(1e-9, nodes * a_day / 24.0)
    work = Work(hours, count * price, rate, saved, _seconds(restore_time))
    chosen = auto(work)
    lines = [without(work, at)]
    lines += [line(work, at, Interval(seconds, "")) for seconds in _intervals(interval)]
    lines.append(line(work, at, chosen))
    usual = on_demand_price * count if on_demand_price is not None else None
    if usual is None and known is not None and known.on_demand is not None:
        usual = known.on_demand * nodes
    recoveries = bounds.max_attempts if nodes == 1 else bounds.max_attempts_multi_node
    back_to = None if usual is None else fallback(work, chosen, usual, recoveries)
    currency = known.currency if known is not None else ""
    if json:
        output.as_json(
            {
                "work": asdict(work)
                | {"undisturbed": _money(work.undisturbed), "saved": saved._asdict() if saved else None},
                "reclaimed_at": at,
                "currency": currency or None,
                "lines": [_rounded(one) for one in lines],
                "auto": chosen._asdict(),
                "with_notice": _money(work.restore / 3600 * work.hourly),
                "fallback": None
                if back_to is None
                else asdict(back_to) | {"rule": back_to.rule, "usual": _money(back_to.usual)},
                "first_offering": known.first.offering if known else None,
                "next_offering": known.then.offering if known and known.then else None,
            }
        )
        return
    _show(work, at, lines, chosen, back_to, known, currency)


def _show(
    work: Work,
    at: float,
    lines: list[Line],
    chosen: Interval,
    back_to: Fallback | None,
    known: Known | None,
    currency: str,
) -> None:
    def money(amount: float | None) -> str | None:
        return None if amount is None else f"{amount:.2f} {currency}".rstrip()

    output.facts(
        [
            ("Run", f"{work.hours:g} h at {money(work.hourly)} an hour: {money(work.undisturbed)} undisturbed"),
            (
                "Taken back",
                f"{work.rate * 24:.3g} a day, {work.rate * work.hours:.3g} in the run, on average",
            ),
            ("Reclaim", f"at {at:g} h, without notice"),
            ("With notice", f"{money(work.restore / 3600 * work.hourly)} and at most a step, if a save fits into it"),
        ]
    )
    output.console().print()
    output.table(
        ("INTERVAL", "THIS RECLAIM", "AT MOST", "SAVING", "RUN WITH IT", "EXPECTED"),
        (
            [
                "none"
                if one.interval is None
                else ("auto: " if one is lines[-1] else "") + str(output.duration(one.interval)),
                money(one.lost),
                money(one.most),
                money(one.saving),
                money(one.total),
                money(one.expected) if one.expected is not None else "never ends",
            ]
            for one in lines
        ),
    )
    output.console().print()
    output.facts(
        [
            (
                "Interval",
                f"auto comes to {output.duration(chosen.seconds)}: {chosen.why.replace(UNMEASURED, _BEGINNING)}",
            ),
            ("Offering", known.first.offering if known else None),
            ("Then", known.then.offering if known and known.then else None),
            ("Fallback", _fallback(back_to, money(back_to.usual)) if back_to else "unknown: give --on-demand-price"),
        ]
    )


def _fallback(found: Fallback, usual: str | None) -> str:
    return f"{found.rule} ({found.why}); on-demand costs {usual} for the whole run"


def _intervals(given: list[str] | None) -> list[float]:
    found = [_seconds(text) for text in given] if given else list(SHOWN)
    for seconds in found:
        if not SHORTEST <= seconds <= LONGEST:
            raise UsageError(f"--interval {seconds:g}: write from 1m to 6h")
    return found


def _refuse_odd(figures: Mapping[str, float | None]) -> None:
    """What no run has, and what no sum can be made of: NaN, infinity, more than a million."""
    for option, figure in figures.items():
        if figure is not None and not figure <= MOST:
            raise UsageError(f"{option}: write a number up to {MOST:,}")


def _money(amount: float) -> float:
    return round(amount, 4)


def _rounded(one: Line) -> dict[str, object]:
    return {key: _money(value) if isinstance(value, float) else value for key, value in asdict(one).items()}
