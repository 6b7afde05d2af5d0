"""What ``check`` looks at on a compute node, which has node.json and needs no burst.yaml."""

from __future__ import annotations

from collections.abc import Iterator

from job_wrapper.errors import UsageError
from job_wrapper.node_config import NodeConfig
from job_wrapper.notice.choose import NONE
from job_wrapper.notice.file import agent_alive
from job_wrapper.notice.probe import probe
from slurm_plugin.checks import node as checks
from slurm_plugin.checks import reading
from slurm_plugin.checks.finding import Finding, fault


def unreadable(error: UsageError) -> Finding:
    """node.json is there, and is none."""
    return fault(
        "node.json",
        f"{error}: neither the agent nor `spotburst run` starts",
        "the manager writes it: end this machine and let it make another, or mend what the message names",
    )


def look_node(node: NodeConfig) -> Iterator[Finding]:
    """Its settings, its agent, its notices."""
    yield from checks.settings(node)
    yield from checks.agent(node, alive=agent_alive(node.notice_file), unit=reading.unit_state(checks.AGENT))
    if node.provider == NONE:
        return
    try:
        answers = probe(node.metadata_url)
    except ValueError as error:
        yield fault("notices", f"metadata_url in node.json: {error}", "metadata_url: http://169.254.169.254")
        return
    yield from checks.notices(node, answers)
