"""What the manager remembers of offerings, as far as this user may read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_plugin.cli.from_ledger import from_ledger
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import Counter
from slurm_plugin.placement import Experience, OfferingState
from slurm_plugin.prices import OF_CLOUDS, Cost, PriceTable, cost, load_prices
from slurm_plugin.timeline import Attempt


@dataclass(frozen=True, slots=True)
class Remembered:
    """``missing``: why the ledger could not be read, "" if it was. ``counters``: as the ledger has them."""

    states: Mapping[str, OfferingState] = field(default_factory=dict)
    seen: Mapping[str, Experience] = field(default_factory=dict)
    live: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[tuple[str, str], Counter] = field(default_factory=dict)
    table: PriceTable | None = None
    missing: str = ""
    sizes: Mapping[str, MachineSize] = field(default_factory=dict)

    @property
    def currency(self) -> str:
        """Of all prices. Clouds tell theirs in US dollars."""
        return self.table.currency if self.table else OF_CLOUDS


def remembered(config: Config) -> Remembered:
    """Never raises: what can't be read is told in ``missing``."""
    table, fault = _table(config)

    def all_of(ledger: Ledger) -> Remembered:
        return Remembered(
            ledger.offerings(),
            ledger.experience(),
            ledger.live_prices(),
            ledger.counters(),
            table,
            fault,
            ledger.sizes(),
        )

    found, why = from_ledger(config, all_of)
    return found or Remembered(table=table, missing=f"nothing is known of what happened to offerings: {why}")


def costs(config: Config | None, made: Sequence[Attempt], now: float) -> tuple[list[Cost], str]:
    """Of each attempt, one machine, by the prices that held when it started; and their currency. What is not known is None in it."""
    if config is None:
        return [cost(_hours(one, now), "", None, {}) for one in made], ""
    table, _ = _table(config)
    told, _ = from_ledger(config, lambda ledger: [ledger.live_prices(one.started) for one in made])
    live = told or [{} for _ in made]
    found = [cost(_hours(one, now), one.offering, table, prices) for one, prices in zip(made, live, strict=True)]
    return found, table.currency if table else OF_CLOUDS


def _table(config: Config) -> tuple[PriceTable | None, str]:
    try:
        return load_prices(config.prices) if config.prices else None, ""
    except ConfigError as error:
        return None, str(error)


def _hours(one: Attempt, now: float) -> float:
    """From its start to its end. One that vanished is known to have lived until its last commit."""
    end = one.ended
    if end is None:
        end = now if one.why == "running" else (one.last_commit or one.claimed)
    return max(0.0, end - one.started) / 3600.0
