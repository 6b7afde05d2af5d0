"""When many nodes are lost at once, what they share is said of all of them, so that Slurm is told in one call and not in a call a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_plugin.ledger_records import Intent

ONE_BY_ONE = 10
"""Up to so many different reasons a pass each node keeps its own."""


def shared_reasons(reasons: Mapping[str, str], intents: Iterable[Intent]) -> dict[str, str]:
    """``reasons`` by node; where they are many, without the name of each node's machine, which the log and the ledger have."""
    if len(set(reasons.values())) <= ONE_BY_ONE:
        return dict(reasons)
    shared = dict(reasons)
    for intent in intents:
        if intent.instance_id and intent.node in shared:
            shared[intent.node] = shared[intent.node].replace(intent.instance_id, "its machine")
    return shared
