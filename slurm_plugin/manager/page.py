"""What the page of the cluster shows, as text in tables. Pure.

Everybody with an account on this machine can read it. So it has ids and states, which Slurm shows to all by default, and no names, comments, users,
commands, addresses or words of a cloud's, which may hold what is nobody else's business. ``monitoring.jobs: false`` leaves out the jobs as well.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.cli.output import duration
from slurm_plugin.manager.metrics import hourly, standing, state_of
from slurm_plugin.manager.saves import Saved
from slurm_plugin.reconcile.flags import Phase
from slurm_plugin.reconcile.index import ACTIVE
from slurm_plugin.reconcile.view import View
from slurm_plugin.slurm.records import Job

MOST = 300
"""Rows of a table."""
_STANDING = {
    "ready": "ready",
    "last": "asked last: its zone was reclaimed",
    "cooling": "cools: no capacity, or its price",
    "stopped": "stopped: a quota or a mistake",
    "blocked": "blocked until its settings change or it is cleared",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """``tone``: "good", "bad" or ""."""

    text: str
    tone: str = ""
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """``more``: rows that are left out; ``empty``: what is said where there are none."""

    id: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int
    empty: str


@dataclass(frozen=True, slots=True)
class Shown:
    """``tiles``: names, values and tones."""

    cluster: str
    tiles: tuple[tuple[str, str, str], ...]
    faults: tuple[str, ...]
    tables: tuple[Table, ...]


def shown(
    cluster: str,
    view: View | None,
    saves: Mapping[str, Saved | None] | None,
    faults: Collection[str],
    partitions: Collection[str],
    now: float,
) -> Shown:
    """``view``: of the newest pass, None before the first. ``saves``: newest checkpoints by job; None: no jobs are shown."""
    if view is None:
        return Shown(cluster, (("Manager", "starts", ""),), tuple(sorted(faults)), ())
    jobs_on: dict[str, list[str]] = defaultdict(list)
    ours = [j for j in view.jobs or () if not j.partitions.isdisjoint(partitions)]
    for job in ours:
        if job.has(*ACTIVE):
            for node in job.nodes:
                jobs_on[node].append(job.name_id)
    tables = [_notices(view, now), _nodes(view, jobs_on if saves is not None else None, now), _offerings(view, now)]
    if saves is not None:
        tables.insert(1, _jobs(ours, saves, now))
    return Shown(cluster, _tiles(view, ours, now), tuple(sorted(faults)), tuple(tables))


def _tiles(view: View, jobs: Collection[Job], now: float) -> tuple[tuple[str, str, str], ...]:
    slurm = view.nodes is not None and view.jobs is not None
    age = max(0.0, now - view.now)
    clouds = ", ".join(sorted(view.silent_providers))
    rate, unknown = hourly(view)
    cost = f"{rate:.2f} an hour" + (f", {unknown} without a price" if unknown else "")
    return (
        ("Manager", f"last pass {duration(age)} ago", "bad" if age > 120 else "good"),
        ("slurmctld", "answers" if slurm else "does not answer", "good" if slurm else "bad"),
        ("Clouds", f"silent: {clouds}" if clouds else "answer", "bad" if clouds else "good"),
        ("Jobs", f"{sum(j.running for j in jobs)} run, {sum(j.has('PENDING') for j in jobs)} wait", ""),
        ("Machines", str(len(view.intents)), ""),
        ("Cost", cost if view.intents else "nothing", ""),
        ("Reclaims now", str(len(view.notices)), "bad" if view.notices else ""),
        ("Nodes silent", str(len(view.silent_since)), "bad" if view.silent_since else ""),
    )


def _notices(view: View, now: float) -> Table:
    rows = [
        (
            Cell(notice.node),
            Cell(notice.offering_id),
            Cell(f"in {duration(notice.deadline - now)}" if notice.deadline and notice.deadline > now else "over" if notice.deadline else "not told", "bad"),
            Cell(f"{duration(max(0.0, now - notice.first_seen))} ago"),
        )
        for notice in sorted(view.notices, key=lambda n: n.first_seen)
    ]  # fmt: skip
    return _table(
        "notices", "Reclaims", ("Node", "Offering", "Deadline", "Heard"), rows, "No node is being taken back."
    )


def _jobs(jobs: Iterable[Job], saves: Mapping[str, Saved | None], now: float) -> Table:
    rows = []
    order = {True: 0, False: 1}
    for job in sorted(jobs, key=lambda j: (order[j.running], j.job_id)):
        if not job.has("PENDING", *ACTIVE):
            continue
        saved = saves.get(job.name_id)
        waits = job.has("PENDING") and job.reason not in ("", "None")
        rows.append(
            (
                Cell(job.name_id),
                Cell("+".join(sorted(job.states)) + (f" ({job.reason})" if waits else "")),
                Cell(job.partition),
                Cell(_few(job.nodes)),
                Cell(str(job.restart_count), number=True),
                Cell(f"{duration(max(0.0, now - saved.time))} ago" if saved else "none yet" if job.name_id in saves else ""),
                Cell(str(saved.step) if saved and saved.step is not None else "", number=True),
            )
        )  # fmt: skip
    headings = ("Job", "State", "Partition", "Nodes", "Restarts", "Checkpoint", "Step")
    return _table("jobs", "Jobs", headings, rows, "No jobs in the partitions of burst.yaml.")


def _nodes(view: View, jobs_on: Mapping[str, list[str]] | None, now: float) -> Table:
    machines = {intent.node: intent for intent in view.intents}
    rows, off = [], 0
    left: Counter[str] = Counter()
    for name, nodeset in view.policy.nodeset_of.items():
        state = state_of(view.nodes.get(name)) if view.nodes is not None else "not known"
        if state == Phase.OFF.value and name not in machines:
            off += 1
            left[nodeset] += 1
            continue
        intent = machines.get(name)
        silent = view.silent_since.get(name)
        since = f"{intent.offering_id}, {intent.state.value}" if intent else ""
        rows.append(
            (
                Cell(name),
                Cell(nodeset),
                Cell(state + (f", silent for {duration(max(0.0, now - silent))}" if silent else ""), "bad" if silent or state == "down" else "good" if state == "up" else ""),
                *([Cell(_few(jobs_on.get(name, ())))] if jobs_on is not None else []),
                Cell(since),
                Cell(f"{duration(max(0.0, now - intent.created))}" if intent else "", number=True),
            )
        )  # fmt: skip
    headings = ("Node", "Nodeset", "State", *(("Jobs",) if jobs_on is not None else ()), "Machine", "For")
    title = f"Nodes ({off} more are off)" if off else "Nodes"
    return _table("nodes", title, headings, rows, "All nodes are off.")


def _offerings(view: View, now: float) -> Table:
    rows = []
    for facts in view.policy.nodesets.values():
        for offering in facts.offerings:
            word, until = standing(view.offerings.get(offering.id), now)
            price = view.known.prices.get(offering.id)
            rows.append(
                (
                    Cell(facts.name),
                    Cell(offering.id),
                    Cell(_STANDING[word], {"ready": "good", "last": ""}.get(word, "bad")),
                    Cell(f"in {duration(until - now)}" if now < until < math.inf else ""),
                    Cell(f"{price:g}" if price is not None else "", number=True),
                )
            )
    return _table("offerings", "Offerings", ("Nodeset", "Offering", "State", "Again", "Price an hour"), rows, "None.")


def _few(words: Iterable[str], most: int = 4) -> str:
    listed = list(words)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _table(id_: str, title: str, headings: tuple[str, ...], rows: Sequence[tuple[Cell, ...]], empty: str) -> Table:
    return Table(id_, title, headings, tuple(rows[:MOST]), max(0, len(rows) - MOST), empty)
