"""Small views for the decision tables."""

from __future__ import annotations

import os
from typing import Any

from slurm_plugin.actions import Action
from slurm_plugin.cloud.provider import Instance, InstanceState, Market, Offering
from slurm_plugin.ledger_records import Intent, IntentState
from slurm_plugin.placement import OfferingState
from slurm_plugin.reconcile import Listing, NodeSetFacts, Policy, Shape, View
from slurm_plugin.slurm.records import Job, Node, Partition

NOW = 1_800_000_000.0
A = Offering("sim", "r", "a", "t", Market.SPOT)
B = Offering("sim", "r", "b", "t", Market.SPOT)
BIG = Offering("sim", "r", "a", "big", Market.ON_DEMAND)


def policy(*names: str, **changes: Any) -> Policy:
    names = names or ("n1", "n2", "n3")
    spot = NodeSetFacts("spot", Shape(1, 1000, 1, frozenset({"spot"})), (A, B), frozenset({"sim"}))
    big = NodeSetFacts("big", Shape(8, 8000, 4, frozenset({"big", "fast"})), (BIG,), frozenset({"sim"}))
    return Policy(
        nodesets={"spot": spot, "big": big},
        nodeset_of={**dict.fromkeys(names, "spot"), "b1": "big"},
        offerings={o.id: o for o in (A, B, BIG)},
        **changes,
    )


def node(
    name: str,
    flags: str = "IDLE POWERED_DOWN",
    reason: str = "",
    partitions: tuple[str, ...] = ("spot",),
    address: str = "10.0.0.1",
) -> Node:
    return Node(name, frozenset(("CLOUD", *flags.split())), reason, address, name, partitions=partitions)


def intent(
    name: str, state: IntentState = IntentState.LIVE, age: float = 1000.0, launch_id: str = "", **changes: Any
) -> Intent:
    """Its node has registered, unless ``registered`` is 0 or the cloud's answer is not known."""
    launch_id = launch_id or f"launch-{name}"
    return Intent(
        launch_id, name, "spot", "sim", A.id, NOW - age, state,
        **{"instance_id": "" if state is IntentState.ASKED else f"i-{launch_id}", "tried": NOW - age,
           "registered": 0.0 if state is IntentState.ASKED else NOW - age + 1, **changes},
    )  # fmt: skip


def machine(of: Intent, state: InstanceState = InstanceState.RUNNING, **changes: Any) -> Instance:
    billed = changes.pop("billed", state is not InstanceState.GONE)
    return Instance(
        of.instance_id or f"i-{of.launch_id}", of.launch_id, of.node, of.nodeset, state, of.created, of.offering_id, billed=billed, **changes
    )  # fmt: skip


def job(job_id: int = 1, states: str = "RUNNING", nodes: tuple[str, ...] = (), **changes: Any) -> Job:
    values: dict[str, Any] = {
        "reason": "None",
        "partition": "spot",
        "priority": 10,
        "node_count": max(1, len(nodes)),
        **changes,
    }
    return Job(
        job_id,
        str(job_id),
        frozenset(states.split()),
        values.pop("reason"),
        values.pop("partition"),
        "u",
        os.geteuid(),
        nodes,
        **values,
    )


def waiting(job_id: int = 1, **changes: Any) -> Job:
    """Requeued 10 s ago."""
    return job(
        job_id,
        "PENDING",
        **{
            "reason": "BeginTime",
            "restart_count": 1,
            "submit_time": int(NOW) - 10,
            "eligible_time": int(NOW) + 111,
            **changes,
        },
    )


def view(
    nodes: list[Node] | None = None,
    jobs: list[Job] | None = None,
    intents: list[Intent] | None = None,
    machines: list[Instance] | None = None,
    *,
    cloud: bool = True,
    rules: Policy | None = None,
    **changes: Any,
) -> View:
    """Nodes not named are idle and off. ``cloud=False``: the provider does not answer."""
    rules = rules or policy()
    named = {n.name: n for n in nodes or []}
    whole = {name: named.get(name) or node(name) for name in rules.nodeset_of}
    return View(
        now=NOW,
        policy=rules,
        nodes=changes.pop("known_nodes", whole),
        jobs=changes.pop("known_jobs", tuple(jobs or ())),
        partitions=changes.pop("partitions", {"spot": Partition("spot", tuple(whole), preempt_mode="REQUEUE")}),
        clouds={"sim": Listing(NOW - 0.1, tuple(machines or ())) if cloud else None},
        intents=tuple(intents or ()),
        **changes,
    )


def cooled(*ids: str, seconds: float = 300.0) -> dict[str, OfferingState]:
    """These offerings as refused, for so long."""
    return {i: OfferingState(i, 1, refused_until=NOW + seconds, text="Insufficient: none left") for i in ids}


def kinds(actions: tuple[Action, ...]) -> list[str]:
    return [type(a).__name__ for a in actions]
