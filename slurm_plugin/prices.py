"""What machines cost: a table that the administrator gives, live prices where a cloud tells them, and what a run cost by them. Pure
but for reading the file.

Prices are of one machine an hour. None means unknown, and is never taken for nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.config_faults import explain, read_yaml
from slurm_plugin.config_types import Model
from slurm_plugin.errors import ConfigError

Hourly = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PriceLine(Model):
    """Prices of one instance type. What is left out (region, zone) holds for all; of two lines that fit, the one that says more counts."""

    provider: str
    instance_type: str
    region: str | None = None
    zone: str | None = None
    on_demand: Hourly | None = None
    spot: Hourly | None = None
    """A usual one: a live price comes before it."""
    reservation: Hourly | None = None

    def fits(self, offering: Offering) -> bool:
        """Whether it speaks of this offering's machines."""
        return (
            self.provider == offering.provider
            and self.instance_type == offering.instance_type
            and self.region in (None, offering.region)
            and self.zone in (None, offering.zone)
        )

    def price(self, market: Market) -> float | None:
        """Of one machine an hour."""
        return {Market.ON_DEMAND: self.on_demand, Market.SPOT: self.spot, Market.RESERVATION: self.reservation}[market]


class PriceTable(Model):
    """The file that ``prices`` of burst.yaml names (docs/placement.md, templates/prices.yaml)."""

    date: dt.date
    """When the prices were looked up."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    machines: tuple[PriceLine, ...] = ()

    def price(self, offering: Offering, market: Market | None = None) -> float | None:
        """Of one machine an hour, in another market where one is named; None if it is not in the table."""
        lines = [line for line in self.machines if line.fits(offering)]
        lines.sort(key=lambda line: (line.zone is None, line.region is None))
        prices = (line.price(market or offering.market) for line in lines)
        return next((price for price in prices if price is not None), None)


def load_prices(path: Path) -> PriceTable:
    """Read and validate. Raises ``ConfigError`` that names the file, the key, what stands there and what is allowed."""
    data = read_yaml(path)
    try:
        return PriceTable.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(path, PriceTable, error)) from None


OF_CLOUDS = "USD"
"""Currency of live prices."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A price of one machine an hour, and where it is from: ``live``, ``table``, or ``on-demand`` (an upper bound of a spot price)."""

    price: float
    source: str


def priced(offering: Offering, table: PriceTable | None, live: Mapping[str, float]) -> Priced | None:
    """What an offering costs, as far as it is known. ``live``: what its cloud tells, by offering id; in a table's other currency it is of no use."""
    if offering.id in live and (table is None or table.currency == OF_CLOUDS):
        return Priced(live[offering.id], "live")
    found = table.price(offering) if table else None
    if found is not None:
        return Priced(found, "table")
    bound = on_demand(offering, table, live) if offering.market is Market.SPOT else None
    return Priced(bound, "on-demand") if bound is not None else None


def on_demand(offering: Offering, table: PriceTable | None, live: Mapping[str, float]) -> float | None:
    """What the offering's machine costs on demand."""
    found = priced(replace(offering, market=Market.ON_DEMAND), table, live)
    return found.price if found else None


def price_list(offerings: Iterable[Offering], table: PriceTable | None, live: Mapping[str, float]) -> dict[str, float]:
    """Known prices, by offering id: what choosing by price looks at."""
    found = {offering.id: priced(offering, table, live) for offering in offerings}
    return {id_: price.price for id_, price in found.items() if price is not None}


@dataclass(frozen=True, slots=True)
class Cost:
    """What an attempt cost, and what on-demand machines would have for the same time; None where a price is not known."""

    hours: float
    """Machine hours."""
    paid: float | None
    on_demand: float | None

    @property
    def saved(self) -> float | None:
        """Against on-demand; below 0 where spot has cost more."""
        return None if self.paid is None or self.on_demand is None else self.on_demand - self.paid

    def times(self, machines: int) -> Cost:
        """Of so many machines like this one."""
        return Cost(
            self.hours * machines,
            None if self.paid is None else self.paid * machines,
            None if self.on_demand is None else self.on_demand * machines,
        )


def cost(hours: float, offering_id: str, table: PriceTable | None, live: Mapping[str, float]) -> Cost:
    """Of one attempt on one offering. ``live``: prices as they were then."""
    offering = offering_of(offering_id)
    if offering is None:
        return Cost(hours, None, None)
    now = priced(offering, table, live)
    usual = on_demand(offering, table, live)
    return Cost(
        hours,
        None if now is None or now.source == "on-demand" else now.price * hours,
        None if usual is None else usual * hours,
    )


def total(costs: Sequence[Cost]) -> Cost:
    """Of a whole run. One unknown part makes the sum unknown."""

    def added(parts: Iterable[float | None]) -> float | None:
        known = list(parts)
        return None if not known or None in known else sum(part for part in known if part is not None)

    return Cost(sum(c.hours for c in costs), added(c.paid for c in costs), added(c.on_demand for c in costs))


def offering_of(offering_id: str) -> Offering | None:
    """From its id; None for what is none."""
    parts = offering_id.split("/")
    if len(parts) != 5 or parts[4] not in [market.value for market in Market]:
        return None
    return Offering(parts[0], parts[1], parts[2], parts[3], Market(parts[4]))
