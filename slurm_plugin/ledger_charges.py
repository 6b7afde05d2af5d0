"""The ledger's memory of money: for how long each node served each attempt of a job, and at what price.

A charge is one node of one attempt: from when the job was given the node, its boot included, until the job left it. Its price is the one that
held when it began. It is of the whole machine, whoever shares it.
"""

from __future__ import annotations

from slurm_plugin.ledger_offerings import OfferingsLedger
from slurm_plugin.ledger_records import AttemptCost, Charge, Spent

_PAID = "price * (CASE WHEN ended>0 THEN ended ELSE MAX(began, ?) END - began) / 3600.0"


class ChargesLedger(OfferingsLedger):
    """See ``Ledger``."""

    def charge_begins(self, charge: Charge, offering_id: str, price: float | None) -> None:
        """``price`` of the machine an hour; None: not known. No matter if it has begun already."""
        self._do(
            "INSERT INTO charges SELECT ?,?,?,?,?,0,?,0 WHERE NOT EXISTS "
            "(SELECT 1 FROM charges WHERE job_id=? AND restart_count=? AND node=? AND ended=0 AND job_over=0)",
            *(charge.job_id, charge.restart_count, charge.node, offering_id, charge.began, price),
            *(charge.job_id, charge.restart_count, charge.node),
        )

    def charge_ends(self, charge: Charge, ended: float) -> None:
        """The job has left the node. No matter if that stands there already."""
        self._do(
            "UPDATE charges SET ended=MAX(began, ?, 1) WHERE job_id=? AND restart_count=? AND node=? AND ended=0",
            *(ended, charge.job_id, charge.restart_count, charge.node),
        )

    def charges(self) -> dict[tuple[int, int, str], Charge]:
        """Those that go on, by job, restart count and node."""
        rows = self._rows("SELECT job_id, restart_count, node, began FROM charges WHERE ended=0 AND job_over=0")
        return {(row[0], row[1], row[2]): Charge(*row) for row in rows}

    def spent(self) -> dict[int, Spent]:
        """By job, all its attempts together; of jobs that Slurm still has in memory."""
        rows = self._rows(
            f"SELECT job_id, TOTAL({_PAID}), TOTAL(CASE WHEN ended=0 THEN price ELSE 0 END), COUNT(*)>COUNT(price) "  # noqa: S608
            "FROM charges WHERE job_over=0 GROUP BY job_id",
            self._clock(),
        )
        return {row[0]: Spent(row[1], row[2], bool(row[3])) for row in rows}

    def attempt_costs(self, job_id: int) -> list[AttemptCost]:
        """Of one job, by restart count."""
        rows = self._rows(
            f"SELECT restart_count, COUNT(DISTINCT node), TOTAL({_PAID}), COUNT(*)>COUNT(price) "  # noqa: S608
            "FROM charges WHERE job_id=? AND job_over=0 GROUP BY restart_count ORDER BY restart_count",
            *(self._clock(), job_id),
        )
        return [AttemptCost(row[0], row[1], None if row[3] else row[2]) for row in rows]

    def _forget_charges(self, job_id: int) -> None:
        """The job is no longer in Slurm's memory: its number may come again."""
        self._do("UPDATE charges SET ended=MAX(began, ?, 1) WHERE job_id=? AND ended=0", self._clock(), job_id)
        self._do("UPDATE charges SET job_over=1 WHERE job_id=?", job_id)
