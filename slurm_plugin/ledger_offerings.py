"""The ledger's memory of offerings: what cools, what is blocked, what was seen of each, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.ledger_file import LedgerFile
from slurm_plugin.placement import Experience, OfferingState, cleared, reclaimed

SEEN_FOR = 7 * 86400.0
REFUSALS_FOR = 86400.0
"""Seconds of the past that count as experience."""
LOST = "its machine is gone"
"""Why an intent ended whose machine nobody ended."""


class OfferingsLedger(LedgerFile):
    """See ``Ledger``. What cools, and until when, survives a restart of the manager as everything here does."""

    def offerings(self) -> dict[str, OfferingState]:
        """What is remembered of each offering, by id."""
        rows = self._rows(
            "SELECT offering_id, failures, refused_until, stopped_until, reclaimed_until, text FROM offerings"
        )
        return {row[0]: OfferingState(*row) for row in rows}

    def offering_reclaimed(self, offering_id: str) -> None:
        """A machine of this offering's zone was taken back."""
        self._offering(offering_id, lambda state: reclaimed(state, self._clock()))

    def clear_offering(self, offering_id: str) -> bool:
        """A person has seen to it: it may be asked at once. False if nothing stood against it."""
        with self.batch():
            state = self.offerings().get(offering_id)
            if state is None or (state.ready_at() <= self._clock() and not state.failures):
                return False
            self._offering(offering_id, cleared)
            self.event("offering", f"{offering_id} cleared by an administrator")
            return True

    def settings_are(self, digests: Mapping[str, str]) -> tuple[str, ...]:
        """At a start: what an offering is bought with now, by id. Those blocked under other settings may be asked again; returns these."""
        freed = []
        with self.batch():
            known = dict(self._rows("SELECT offering_id, digest FROM settings"))
            for offering_id, state in self.offerings().items():
                if state.permanent and digests.get(offering_id, "") not in ("", known.get(offering_id)):
                    self._offering(offering_id, cleared)
                    self.event("offering", f"{offering_id} may be asked again: its settings have changed")
                    freed.append(offering_id)
            for offering_id, digest in digests.items():
                self._do("INSERT OR REPLACE INTO settings VALUES (?,?)", offering_id, digest)
        return tuple(freed)

    def experience(self) -> dict[str, Experience]:
        """What was seen of each offering lately, by id. Reads all of the past week's intents: not for every pass."""
        now = self._clock()
        since = now - SEEN_FOR
        found: dict[str, dict[str, Any]] = {}
        for offering_id, seconds, launches in self._rows(
            "SELECT offering_id, SUM(MAX(0, CASE WHEN ended>0 THEN ended ELSE ? END - MAX(created, ?))), COUNT(*) FROM intents "
            "WHERE state IN ('live','retired','gone') AND instance_id<>'' AND (ended=0 OR ended>?) GROUP BY offering_id",
            *(now, since, since),
        ):
            found[offering_id] = {"hours": seconds / 3600.0, "launches": launches}
        for offering_id, reclaims in self._rows(
            "SELECT offering_id, COUNT(DISTINCT launch_id) FROM ("
            "SELECT offering_id, launch_id FROM notices WHERE state<>'withdrawn' AND first_seen>? UNION "
            "SELECT offering_id, launch_id FROM intents WHERE state='gone' AND why=? AND ended>?) GROUP BY offering_id",
            *(since, LOST, since),
        ):
            found.setdefault(offering_id, {})["reclaims"] = reclaims
        for offering_id, refusals in self._rows(
            "SELECT offering_id, COUNT(*) FROM intents WHERE state='refused' AND ended>? GROUP BY offering_id",
            now - REFUSALS_FOR,
        ):
            found.setdefault(offering_id, {})["refusals"] = refusals
        return {offering_id: Experience(**values) for offering_id, values in found.items()}

    def note_prices(self, prices: Mapping[str, float]) -> None:
        """Live prices of one machine an hour, by offering id; one that has not changed is not written again."""
        with self.batch():
            known = self.live_prices()
            for offering_id, price in prices.items():
                if not math.isclose(known.get(offering_id, -1.0), price):
                    self._do("INSERT OR REPLACE INTO prices VALUES (?,?,?)", offering_id, self._clock(), price)

    def note_sizes(self, sizes: Mapping[str, MachineSize]) -> None:
        """What the clouds say of offerings' machines, by offering id."""
        with self.batch():
            for offering_id, size in sizes.items():
                row = (offering_id, self._clock(), size.cpus, size.memory_mb, size.gpus)
                self._do("INSERT OR REPLACE INTO sizes VALUES (?,?,?,?,?)", *row)

    def sizes(self, since: float = 0.0) -> dict[str, MachineSize]:
        """What is known of offerings' machines, by offering id; only what was told after ``since`` (Unix seconds)."""
        rows = self._rows("SELECT offering_id, cpus, memory_mb, gpus FROM sizes WHERE time>=?", since)
        return {row[0]: MachineSize(*row[1:]) for row in rows}

    def live_prices(self, at: float | None = None) -> dict[str, float]:
        """The newest live price of each offering, or the one that held at a moment (the first known, if it lies before all)."""
        newest = dict(
            self._rows(
                "SELECT offering_id, price FROM (SELECT offering_id, price, MAX(time) FROM prices WHERE time<=? GROUP BY offering_id)",
                self._clock() if at is None else at,
            )
        )
        if at is None:
            return newest
        first = self._rows(
            "SELECT offering_id, price FROM (SELECT offering_id, price, MIN(time) FROM prices GROUP BY offering_id)"
        )
        return {**dict(first), **newest}

    def _offering(self, offering_id: str, change: Callable[[OfferingState], OfferingState]) -> None:
        with self.batch():
            rows = self._rows(
                "SELECT offering_id, failures, refused_until, stopped_until, reclaimed_until, text FROM offerings WHERE offering_id=?",
                offering_id,
            )
            new = change(OfferingState(*rows[0]) if rows else OfferingState(offering_id))
            self._do(
                "INSERT OR REPLACE INTO offerings VALUES (?,?,?,?,?,?)",
                *(new.offering_id, new.failures, new.refused_until, new.stopped_until, new.reclaimed_until, new.text),
            )
