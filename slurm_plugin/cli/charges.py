"""For ``describe``: what the manager has charged a job for, all its machines together, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_plugin.cli import output
from slurm_plugin.cli.from_ledger import from_ledger, number_of
from slurm_plugin.config import Config
from slurm_plugin.ledger_records import AttemptCost
from slurm_plugin.placement.limit import cost_limit
from slurm_plugin.slurm.records import Job


@dataclass(frozen=True, slots=True)
class Charged:
    """In the currency of the prices. ``limit``: None without one; ``spent``: None where a price is not known."""

    limit: float | None
    spent: float | None
    attempts: list[AttemptCost]

    def text(self, currency: str) -> str | None:
        """One line; None where there is nothing to tell."""
        if not self.attempts and self.limit is None:
            return None
        spent = output.money(self.spent, currency) or "unknown (a price is not known)"
        machines = max((one.machines for one in self.attempts), default=0)
        many = f", {machines} machines at a time" if machines > 1 else ""
        return f"{spent}{many}" + (
            f", of at most {output.money(self.limit, currency)}" if self.limit is not None else ""
        )


def charged(config: Config | None, job: str, shown: Job | None) -> Charged | None:
    """None where this user may not read the ledger, or the job is not known there."""
    number = number_of(job, shown)
    if config is None or number is None:
        return None
    found, _ = from_ledger(config, lambda ledger: (ledger.attempt_costs(number), ledger.seen_jobs().get(number)))
    if found is None:
        return None
    made, seen = found
    on = seen.nodeset if seen is not None else next((s.name for n in (shown.nodes if shown else ()) if (s := config.nodeset_of(n))), "")  # fmt: skip
    rules = next((config.rules_of(nodeset) for nodeset in config.nodesets if nodeset.name == on), None)
    limit = cost_limit(shown.comment if shown is not None else "", rules).limit
    paid = [one.paid for one in made]
    return Charged(limit, None if None in paid else sum(p for p in paid if p is not None), made)
