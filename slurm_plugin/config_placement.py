"""``placement`` of burst.yaml: which offerings may be bought, in what order, and when on-demand is."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from slurm_plugin.config_types import Duration, Model, Name, Period
from slurm_plugin.placement import Interruptible, Order, Rules


def parse_share(value: Any) -> Any:
    """``"10%"`` or a number from 0 to 1."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100.0
        except ValueError:
            raise ValueError(f"{value!r} is not a share: write a percentage such as 10%") from None
    return value


Share = Annotated[float, BeforeValidator(parse_share), Field(ge=0, le=1, allow_inf_nan=False)]


class OnDemandAfter(Model):
    """On-demand is bought only once one of these has come about."""

    failures: Annotated[int, Field(ge=1)] | None = None
    """Of the job's starts: interruptions, and starts that found no capacity. Then what can't be taken back comes first."""
    wait: Duration | None = None
    """For capacity."""

    @model_validator(mode="after")
    def _says_something(self) -> OnDemandAfter:
        if self.failures is None and self.wait is None:
            raise ValueError("write failures, wait, or both")
        return self


class Placement(Model):
    """At the top of burst.yaml it holds for all nodesets; a nodeset's own keys come before it."""

    policy: Order = Order.ORDER
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    gpu_types: tuple[Name, ...] = ()
    """By an offering's ``gpu``, or the nodeset's ``gpus.type``."""
    interruptible: Interruptible = Interruptible.ALLOWED
    max_price: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of one machine an hour, in the price table's currency. What has no known price is then not bought."""
    on_demand_after: OnDemandAfter | None = None
    final_on_demand: Share = 0.0
    """The last part of a run, by the counters that its program tells (``spotburst progress``)."""
    cost_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of one run, over all its attempts and machines, in the same currency. A job's own (``cost_limit=…`` in its comment) may be lower."""
    across_zones: bool = False
    """Whether the nodes of one job may have machines in several zones."""
    queue_timeout: Period = 86400.0
    """A job that has found no capacity for this long is cancelled with CapacityUnavailable."""

    def over(self, general: Placement) -> Placement:
        """This one, with what it does not say taken from ``general``."""
        return general.model_copy(update={key: getattr(self, key) for key in self.model_fields_set})

    def rules(self) -> Rules:
        """As choosing needs it."""
        after = self.on_demand_after
        return Rules(
            policy=self.policy,
            regions=self.regions,
            zones=self.zones,
            gpu_types=self.gpu_types,
            interruptible=self.interruptible,
            max_price=self.max_price,
            on_demand_after_failures=after.failures if after else None,
            on_demand_after_wait=after.wait if after else None,
            final_on_demand=self.final_on_demand,
            queue_timeout=self.queue_timeout,
            cost_limit=self.cost_limit,
            across_zones=self.across_zones,
        )
