"""What the manager must not forget, in one SQLite file: launch intents, offerings, notices, replacements, jobs seen, what happened.

Kept in WAL mode with synchronous=FULL: what a call wrote is there after ``kill -9`` and after a power cut. Only the manager writes;
``describe`` and others open it read-only beside it. A file that is damaged is moved aside, never repaired: machines are found again by
their tags, the rest is experience.
"""

from __future__ import annotations

import json
import uuid
from functools import partial

from slurm_plugin.cloud.provider import RefusalKind
from slurm_plugin.ledger_charges import ChargesLedger
from slurm_plugin.ledger_offerings import LOST
from slurm_plugin.ledger_records import (
    RELEASED,
    TOLD_NO_CAPACITY,
    TRIED_AGAIN,
    WAIT_FORGOTTEN,
    WAITING,
    Counter,
    Intent,
    IntentState,
    OpenNotice,
    Replacement,
    SeenJob,
)
from slurm_plugin.placement import launched, refused

KEEP_EVENTS = 30 * 86400.0
"""Seconds for which events and closed intents are kept."""
_TRY_AGAIN = (1.0, 30.0)
"""First and longest wait after TRY_LATER, in seconds; doubled each time."""


class Ledger(ChargesLedger):
    """The manager's memory. Times are Unix seconds by the clock that it was opened with."""

    # --- intents ------------------------------------------------------------------------------------------------------

    def open_intent(
        self, node: str, nodeset: str, provider: str, offering_id: str, launch_id: str | None = None, *, job: int = 0
    ) -> Intent:
        """Before the cloud is asked. ``launch_id``: one of a batch (cloud/launch_ids.py); None: one of its own. ``job``: whom it is for."""
        intent = Intent(
            launch_id or str(uuid.uuid4()),
            node,
            nodeset,
            provider,
            offering_id,
            self._clock(),
            IntentState.ASKED,
            tried=self._clock(),
        )
        with self.batch():
            self._put(intent)
            self.event("launch", f"asking {offering_id}", node=node, job=job, launch_id=intent.launch_id)
        return intent

    def asked_again(self, launch_id: str) -> None:
        """Before the same call is repeated."""
        self._do("UPDATE intents SET tried=?, tries=tries+1 WHERE launch_id=?", self._clock(), launch_id)

    def launched(self, launch_id: str, instance_id: str, *, job: int = 0) -> None:
        """The cloud accepted."""
        with self.batch():
            changed = self._do(
                "UPDATE intents SET instance_id=?, state=CASE WHEN state='asked' THEN 'live' ELSE state END "
                "WHERE launch_id=? AND state IN ('asked','live','retired')",
                instance_id,
                launch_id,
            )
            for node, offering_id in self._rows("SELECT node, offering_id FROM intents WHERE launch_id=?", launch_id):
                self.event(
                    "launched",
                    f"{instance_id} of {offering_id}",
                    node=node,
                    job=job,
                    launch_id=launch_id,
                    instance_id=instance_id,
                )
                if changed:
                    self._offering(offering_id, lambda state: launched(state, self._clock()))

    def refused(
        self, launch_id: str, kind: RefusalKind, code: str, text: str, *, permanent: bool = False, job: int = 0
    ) -> None:
        """The cloud refused: the intent is closed and its offering cools; after TRY_LATER it waits to be asked again."""
        now = self._clock()
        with self.batch():
            for node, offering_id, tries in self._rows(
                "SELECT node, offering_id, tries FROM intents WHERE launch_id=? AND state='asked'", launch_id
            ):
                if kind is RefusalKind.TRY_LATER:
                    wait = min(_TRY_AGAIN[1], _TRY_AGAIN[0] * 2 ** min(tries, 10))
                    self._do("UPDATE intents SET retry_at=? WHERE launch_id=?", now + wait, launch_id)
                else:
                    why = f"{code}: {text}"
                    self._do(
                        "UPDATE intents SET state='refused', ended=?, why=? WHERE launch_id=?", now, why, launch_id
                    )
                    self._offering(offering_id, partial(refused, kind=kind, text=why, now=now, permanent=permanent))
                self.event(
                    "refused",
                    f"{offering_id}: {code}: {text}",
                    node=node,
                    job=job,
                    launch_id=launch_id,
                    refusal=kind.value,
                )

    def adopt(
        self,
        *,
        launch_id: str,
        instance_id: str,
        node: str,
        nodeset: str,
        provider: str,
        offering_id: str,
        launched: float,
    ) -> None:
        """A machine found by its tag: the answer of its launch was lost, or the whole ledger was."""
        with self.batch():
            changed = self._do(
                "UPDATE intents SET instance_id=?, state=CASE WHEN state='retired' THEN 'retired' ELSE 'live' END "
                "WHERE launch_id=?",
                instance_id,
                launch_id,
            )
            if not changed:
                self._put(
                    Intent(
                        launch_id,
                        node,
                        nodeset,
                        provider,
                        offering_id,
                        launched,
                        IntentState.LIVE,
                        instance_id,
                        tried=launched,
                    )
                )
            self.event(
                "adopted", f"{instance_id} found by its tag", node=node, launch_id=launch_id, instance_id=instance_id
            )

    def registered(self, launch_id: str) -> None:
        """Its node is up: whatever becomes of it, it has booted. The first time counts."""
        self._do("INSERT OR IGNORE INTO registered VALUES (?,?)", launch_id, self._clock())

    def retire(self, launch_id: str, why: str, *, blame: bool = False) -> bool:
        """The machine is to be ended; before the cloud is told. False if that stood there already."""
        return self._end(launch_id, IntentState.RETIRED, ("asked", "live"), why, blame)

    def close_intent(self, launch_id: str, why: str, *, blame: bool = False) -> bool:
        """The machine is gone. False if that stood there already."""
        return self._end(launch_id, IntentState.GONE, ("asked", "live", "retired"), why, blame)

    def _end(self, launch_id: str, state: IntentState, before: tuple[str, ...], why: str, blame: bool) -> bool:
        now = self._clock()
        with self.batch():
            marks = ",".join("?" * len(before))
            changed = self._do(
                "UPDATE intents SET state=?, ended=?, why=CASE WHEN state='retired' AND why<>'' AND ?=? THEN why ELSE ? END "  # noqa: S608
                f"WHERE launch_id=? AND state IN ({marks})",
                state.value,
                now,
                *(why, LOST, why),  # one that we ended keeps why
                launch_id,
                *before,
            )
            for node, offering_id in self._rows("SELECT node, offering_id FROM intents WHERE launch_id=?", launch_id):
                if changed:
                    self.event(state.value, why, node=node, launch_id=launch_id)
                    if blame:
                        self._offering(offering_id, lambda state: refused(state, RefusalKind.NO_CAPACITY, why, now))
        return bool(changed)

    def _put(self, i: Intent) -> None:
        self._do(
            "INSERT INTO intents (launch_id, node, nodeset, provider, offering_id, created, state, instance_id, tried) "
            "VALUES (?,?,?,?,?,?,?,?,?)",
            *(
                i.launch_id,
                i.node,
                i.nodeset,
                i.provider,
                i.offering_id,
                i.created,
                i.state.value,
                i.instance_id,
                i.tried,
            ),
        )

    def intents(self, *, closed: bool = False) -> tuple[Intent, ...]:
        """All open intents, oldest first; with ``closed`` also the refused and the gone."""
        states = ("asked", "live", "retired", "refused", "gone") if closed else ("asked", "live", "retired")
        rows = self._rows(
            "SELECT launch_id, node, nodeset, provider, offering_id, created, state, instance_id, tried, tries, retry_at, ended, why, "
            "IFNULL(time, 0) FROM intents LEFT JOIN registered USING (launch_id) WHERE state IN (SELECT value FROM json_each(?)) ORDER BY created, launch_id",
            json.dumps(states),
        )
        return tuple(
            Intent(r[0], r[1], r[2], r[3], r[4], r[5], IntentState(r[6]), r[7], r[8], r[9], r[10], r[11], r[12], r[13])
            for r in rows
        )

    # --- notices ------------------------------------------------------------------------------------------------------

    def record_notice(self, notice: OpenNotice) -> bool:
        """True if it is new, or was ended and is there again."""
        with self.batch():
            known = self._rows("SELECT state FROM notices WHERE notice_id=?", notice.notice_id)
            if known and known[0][0] == "open":
                return False
            n = notice
            self._do(
                "INSERT OR REPLACE INTO notices VALUES (?,?,?,?,?,?,?,'open')",
                *(n.notice_id, n.node, n.launch_id, n.offering_id, n.deadline, n.source, n.first_seen),
            )
            self.event(
                "notice", f"reclaim, told by {n.source}", node=n.node, deadline=n.deadline, notice_id=n.notice_id
            )
            return True

    def end_notice(self, notice_id: str, outcome: str) -> bool:
        """``withdrawn`` or ``over``. False if that stood there already."""
        with self.batch():
            rows = self._rows("SELECT node FROM notices WHERE notice_id=? AND state='open'", notice_id)
            self._do("UPDATE notices SET state=? WHERE notice_id=? AND state='open'", outcome, notice_id)
            for (node,) in rows:
                self.event("notice", outcome, node=node, notice_id=notice_id)
            return bool(rows)

    def notices(self) -> tuple[OpenNotice, ...]:
        """The open ones."""
        return tuple(
            OpenNotice(*row)
            for row in self._rows(
                "SELECT notice_id, node, launch_id, offering_id, deadline, source, first_seen FROM notices WHERE state='open' "
                "ORDER BY notice_id"
            )
        )

    # --- replacements -------------------------------------------------------------------------------------------------

    def open_replacement(self, job_id: int, node: str, because: str) -> bool:
        """Before the node is powered up. False if it is open already."""
        with self.batch():
            if self._rows("SELECT 1 FROM replacements WHERE job_id=? AND node=? AND state='open'", job_id, node):
                return False
            self._do("DELETE FROM replacements WHERE job_id=? AND node=?", job_id, node)
            self._do("INSERT INTO replacements VALUES (?,?,?,?,'open')", job_id, node, self._clock(), because)
            self.event("replacement", f"replacement {node} prepared: {because}", node=node, job=job_id)
            return True

    def end_replacement(self, job_id: int, node: str, outcome: str) -> bool:
        """``used``, ``released`` or ``lost``."""
        with self.batch():
            changed = self._do(
                "UPDATE replacements SET state=? WHERE job_id=? AND node=? AND state='open'", outcome, job_id, node
            )
            if changed:
                self.event("replacement", f"replacement {node} {outcome}", node=node, job=job_id)
            return bool(changed)

    def replacements(self) -> tuple[Replacement, ...]:
        """The open ones."""
        return tuple(
            Replacement(*row)
            for row in self._rows(
                "SELECT job_id, node, created, because FROM replacements WHERE state='open' ORDER BY job_id, node"
            )
        )

    # --- jobs, counters, events ---------------------------------------------------------------------------------------

    def remember_job(self, job_id: int, restart_count: int, nodeset: str, nodes: tuple[str, ...]) -> None:
        """Where a job runs."""
        self._do(
            "INSERT OR REPLACE INTO seen_jobs VALUES (?,?,?,?)", job_id, restart_count, nodeset, json.dumps(list(nodes))
        )

    def forget_job(self, job_id: int) -> None:
        """The job is no longer in Slurm's memory; its counters go too, since its number may come again."""
        with self.batch():
            self._do("DELETE FROM seen_jobs WHERE job_id=?", job_id)
            self._do("DELETE FROM counters WHERE name=?", f"job:{job_id}")
            self._forget_charges(job_id)

    def wait_begins(self, job_id: int) -> None:
        """The job finds no capacity, again or from now on."""
        name, now = f"job:{job_id}", self._clock()
        with self.batch():
            told = self._rows("SELECT last FROM counters WHERE name=? AND kind=?", name, TOLD_NO_CAPACITY)
            again = bool(told) and now - told[0][0] <= WAIT_FORGOTTEN
            if not again:
                self._do("DELETE FROM counters WHERE name=? AND kind=?", name, WAITING)
            self._do("INSERT OR IGNORE INTO counters VALUES (?,?,1,?)", name, WAITING, now)
            self._do("INSERT OR REPLACE INTO counters VALUES (?,?,1,?)", name, TOLD_NO_CAPACITY, now)

    def wait_ends(self, job_id: int) -> None:
        """The job runs, or is held."""
        self._do("DELETE FROM counters WHERE name=? AND kind IN (?,?)", f"job:{job_id}", WAITING, TOLD_NO_CAPACITY)

    def forget_releases(self, job_id: int) -> None:
        """It runs well."""
        self._do("DELETE FROM counters WHERE name=? AND kind IN (?,?)", f"job:{job_id}", RELEASED, TRIED_AGAIN)

    def seen_jobs(self) -> dict[int, SeenJob]:
        """All remembered jobs, by id."""
        found = {}
        for row in self._rows("SELECT job_id, restart_count, nodeset, nodes FROM seen_jobs"):
            try:
                nodes = tuple(map(str, json.loads(row[3])))
            except (ValueError, TypeError, RecursionError):
                continue  # damaged: it is seen again where it runs
            found[row[0]] = SeenJob(row[0], row[1], row[2], nodes)
        return found

    def count(self, name: str, kind: str) -> int:
        """One more; returns the new count."""
        with self.batch():
            self._do(
                "INSERT INTO counters VALUES (?,?,1,?) ON CONFLICT(name, kind) DO UPDATE SET count=count+1, last=excluded.last",
                *(name, kind, self._clock()),
            )
            return int(self._rows("SELECT count FROM counters WHERE name=? AND kind=?", name, kind)[0][0])

    def first(self, name: str, kind: str) -> bool:
        """Count one, and no more: the counter's ``last`` is the first time. Whether this is it."""
        return bool(self._do("INSERT OR IGNORE INTO counters VALUES (?,?,1,?)", name, kind, self._clock()))

    def counters(self) -> dict[tuple[str, str], Counter]:
        """All, by (name, kind). Names of jobs are ``job:<id>``."""
        return {(row[0], row[1]): Counter(row[2], row[3]) for row in self._rows("SELECT * FROM counters")}

    def prune(self) -> None:
        """Drop what is older than ``KEEP_EVENTS``."""
        before = self._clock() - KEEP_EVENTS
        with self.batch():
            self._do("DELETE FROM events WHERE time<?", before)
            self._do("DELETE FROM intents WHERE state IN ('refused','gone') AND ended<?", before)
            self._do("DELETE FROM registered WHERE launch_id NOT IN (SELECT launch_id FROM intents)")
            self._do("DELETE FROM notices WHERE state<>'open' AND first_seen<?", before)
            self._do(
                "DELETE FROM prices WHERE time<? AND time<(SELECT MAX(time) FROM prices p WHERE p.offering_id=prices.offering_id)",
                before,
            )
            self._do("DELETE FROM replacements WHERE state<>'open' AND created<?", before)
            self._do("DELETE FROM charges WHERE job_over=1 AND ended<?", before)
