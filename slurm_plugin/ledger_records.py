"""The ledger's tables, and its rows as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

VERSION = 1
"""Format of the file (SQLite's user_version). A step of ``SCHEMA`` per version, each harmless when repeated."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS intents (
  launch_id TEXT PRIMARY KEY, node TEXT NOT NULL, nodeset TEXT NOT NULL, provider TEXT NOT NULL, offering_id TEXT NOT NULL,
  created REAL NOT NULL, state TEXT NOT NULL, instance_id TEXT NOT NULL DEFAULT '', tried REAL NOT NULL DEFAULT 0,
  tries INTEGER NOT NULL DEFAULT 0, retry_at REAL NOT NULL DEFAULT 0, ended REAL NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS intents_state ON intents (state);
CREATE TABLE IF NOT EXISTS registered (launch_id TEXT PRIMARY KEY, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS offerings (
  offering_id TEXT PRIMARY KEY, failures INTEGER NOT NULL, refused_until REAL NOT NULL, stopped_until REAL NOT NULL,
  reclaimed_until REAL NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS settings (offering_id TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS prices (
  offering_id TEXT NOT NULL, time REAL NOT NULL, price REAL NOT NULL, PRIMARY KEY (offering_id, time));
CREATE TABLE IF NOT EXISTS sizes (
  offering_id TEXT PRIMARY KEY, time REAL NOT NULL, cpus INTEGER NOT NULL, memory_mb INTEGER NOT NULL, gpus INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS notices (
  notice_id TEXT PRIMARY KEY, node TEXT NOT NULL, launch_id TEXT NOT NULL, offering_id TEXT NOT NULL, deadline REAL,
  source TEXT NOT NULL, first_seen REAL NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS replacements (
  job_id INTEGER NOT NULL, node TEXT NOT NULL, created REAL NOT NULL, because TEXT NOT NULL, state TEXT NOT NULL,
  PRIMARY KEY (job_id, node));
CREATE TABLE IF NOT EXISTS seen_jobs (
  job_id INTEGER PRIMARY KEY, restart_count INTEGER NOT NULL, nodeset TEXT NOT NULL, nodes TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
  job_id INTEGER NOT NULL, restart_count INTEGER NOT NULL, node TEXT NOT NULL, offering_id TEXT NOT NULL, began REAL NOT NULL,
  ended REAL NOT NULL, price REAL, job_over INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS charges_job ON charges (job_id, job_over);
CREATE TABLE IF NOT EXISTS counters (
  name TEXT NOT NULL, kind TEXT NOT NULL, count INTEGER NOT NULL, last REAL NOT NULL, PRIMARY KEY (name, kind));
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, job INTEGER NOT NULL, node TEXT NOT NULL, text TEXT NOT NULL,
  detail TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_job ON events (job);
CREATE INDEX IF NOT EXISTS events_node ON events (node);
"""


WAITING = "no-capacity"
"""Kind of the counter of a job that finds no capacity; its ``last`` is since when."""
TOLD_NO_CAPACITY = "no-capacity-told"
"""The same; its ``last`` is when it was last so."""
RELEASED = "released"
"""Kind of the counter of a job's releases after failed launches."""
TRIED_AGAIN = "tried-again"
"""The same, out of BadConstraints."""
WAIT_FORGOTTEN = 3600.0
"""Seconds without another try in vain after which a wait begins anew: the job waited for something else meanwhile."""


COST_ASKED = "cost-limit"
"""Begins the kind of the counter, one an attempt and limit, of a job that was asked to be suspended for its cost; its ``last`` is when it was first."""
COST_RAISED = "cost-limit-raised"
"""The same, of one whose limit was raised after that: it was let go."""


class IntentState(str, Enum):
    """Life of a launch intent. Open: asked, live, retired. Closed: refused, gone."""

    ASKED = "asked"
    """Written down; the cloud's answer is not known."""
    LIVE = "live"
    """The machine exists, as far as we know."""
    RETIRED = "retired"
    """The machine is to be ended and is not yet known to be gone."""
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Intent:
    """One launch, from before the cloud was asked until its machine is known to be gone. Times in Unix seconds."""

    launch_id: str
    node: str
    nodeset: str
    provider: str
    offering_id: str
    created: float
    state: IntentState
    instance_id: str = ""
    tried: float = 0.0
    tries: int = 0
    retry_at: float = 0.0
    """Not to be asked again before this (TRY_LATER)."""
    ended: float = 0.0
    why: str = ""
    registered: float = 0.0
    """When its node was first seen up; 0 if it never was."""


@dataclass(frozen=True, slots=True)
class OpenNotice:
    """A reclaim that was told of and is neither withdrawn nor over."""

    notice_id: str
    node: str
    launch_id: str
    offering_id: str
    deadline: float | None
    source: str
    first_seen: float


@dataclass(frozen=True, slots=True)
class Replacement:
    """A node powered up ahead for a job."""

    job_id: int
    node: str
    created: float
    because: str


@dataclass(frozen=True, slots=True)
class SeenJob:
    """Where a job was last seen running."""

    job_id: int
    restart_count: int
    nodeset: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Charge:
    """One node of one attempt, since when (Unix seconds)."""

    job_id: int
    restart_count: int
    node: str
    began: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job has cost so far, all its attempts together, in the currency of the prices."""

    paid: float
    rate: float
    """What it costs an hour now."""
    unknown: bool
    """A part of it has no known price, and is not in ``paid``."""


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """What one attempt cost, all its machines together; None where a price is not known."""

    restart_count: int
    machines: int
    paid: float | None


@dataclass(frozen=True, slots=True)
class Counter:
    """How often, and when last (Unix seconds)."""

    count: int
    last: float


@dataclass(frozen=True, slots=True)
class Event:
    """What happened. ``job`` 0 and ``node`` "" where it is about none."""

    time: float
    kind: str
    job: int
    node: str
    text: str
    detail: dict[str, Any] = field(default_factory=dict)
