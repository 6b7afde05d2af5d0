"""``spotburst nodes``: the cluster's nodes as Slurm shows them, with their nodesets and jobs."""

from __future__ import annotations

from collections import defaultdict

from slurm_plugin.cli import output
from slurm_plugin.cli.source import ConfigOption, JsonOption, settings, slurm_client


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
    rows = [
        {
            "node": name,
            "nodeset": nodeset,
            "states": sorted(shown[name].states) if name in shown else [],
            "jobs": jobs[name],
            "address": shown[name].address if name in shown and shown[name].up else "",
            "reason": shown[name].reason if name in shown else "not in slurm.conf: see `spotburst render`",
        }
        for name, nodeset in wanted
    ]
    if json:
        output.as_json(rows)
        return
    output.table(
        ("NODE", "NODESET", "STATE", "JOBS", "ADDRESS", "REASON"),
        (
            [r["node"], r["nodeset"], "+".join(r["states"]), ",".join(r["jobs"]), r["address"], r["reason"]]
            for r in rows
        ),
    )
