"""``spotburst nodes``: the cluster's nodes as Slurm shows them, with their nodesets, jobs and machines."""

from __future__ import annotations

from collections import defaultdict

from slurm_plugin.cli import output
from slurm_plugin.cli.from_ledger import from_ledger
from slurm_plugin.cli.source import ConfigOption, JsonOption, settings, slurm_client
from slurm_plugin.config import Config


def command(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the nodes, their nodesets and jobs. All of Slurm's nodes where there is no burst.yaml."""
    known = settings(config)
    client = slurm_client(known)
    shown = {node.name: node for node in client.nodes()}
    jobs: dict[str, list[str]] = defaultdict(list)
    for job in client.jobs():
        if job.has("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"):
            for name in job.nodes:
                jobs[name].append(job.name_id)
    wanted = [(n, s.name) for s in known.nodesets for n in s.node_names] if known else [(n, "") for n in sorted(shown)]
    owned = _machines(known)
    wanted += [(name, "") for name in sorted(set(owned) - {name for name, _ in wanted})]
    rows = [
        {
            "node": name,
            "nodeset": nodeset,
            "states": sorted(shown[name].states) if name in shown else [],
            "jobs": jobs[name],
            "address": shown[name].address if name in shown and shown[name].up else "",
            "reason": shown[name].reason if name in shown else "not in slurm.conf: see `spotburst render`",
            "machines": owned.get(name, []),
        }
        for name, nodeset in wanted
    ]
    if json:
        output.as_json(rows)
        return
    output.table(
        ("NODE", "NODESET", "STATE", "JOBS", "ADDRESS", "MACHINE", "REASON"),
        (
            [
                r["node"],
                r["nodeset"],
                "+".join(r["states"]),
                ",".join(r["jobs"]),
                r["address"],
                ",".join(r["machines"]),
                r["reason"],
            ]
            for r in rows
        ),
    )


def _machines(config: Config | None) -> dict[str, list[str]]:
    """By node, machines that were asked for and have not been seen to be gone: ids of the cloud's, or of the launch where that is not known yet.

    Nothing where this user may not read the manager's ledger.
    """
    found: dict[str, list[str]] = defaultdict(list)
    if config is None:
        return found
    intents, _ = from_ledger(config, lambda ledger: ledger.intents())
    for intent in intents or ():
        found[intent.node].append(intent.instance_id or intent.launch_id)
    return found
