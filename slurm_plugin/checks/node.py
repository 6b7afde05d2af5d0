"""A compute node: its settings, its agent, where its notices come from. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from job_wrapper.node_config import NodeConfig
from job_wrapper.notice.choose import AUTO, NONE, PROVIDERS
from slurm_plugin.checks.finding import Finding, fault, note, ok

AGENT = "spotburst-agent.service"
ABSENT = "not-found"
"""State of a unit of which systemd has no file."""
_DEAF = "this node is not drained at a notice, and gets new jobs until it is gone"
_INSTALL = (
    f"`spotburst render agent-service >/etc/systemd/system/{AGENT}` from where burst.yaml is, then "
    f"`systemctl enable --now {AGENT}` here"
)


def settings(node: NodeConfig) -> Iterator[Finding]:
    """node.json."""
    if not node.node:
        yield fault(
            "node.json",
            "is not there: the machine was not made for a node, or its first boot did not get so far",
            "see /var/log/cloud-init-output.log of its first boot (Google Cloud: `journalctl -u google-startup-scripts`)",
        )
        return
    yield ok("node.json", f"{node.node} of nodeset {node.nodeset}")
    known = (*PROVIDERS, AUTO, NONE, "")
    if node.provider not in known:
        yield fault(
            "node.json",
            f"provider is {node.provider!r}, which nobody knows: the agent does not start",
            f"provider: one of {', '.join(word for word in known if word)}; the manager writes it, so end this machine and let it make another",
        )


def agent(node: NodeConfig, *, alive: bool, unit: str) -> Iterator[Finding]:
    """``alive``: it has looked within the last seconds; ``unit``: its state by systemd, "" where there is no systemd."""
    if alive:
        yield ok("agent", "runs")
        if unit not in ("", "active", "activating"):
            yield note("agent", f"its unit is {unit}: it was started by hand, and nothing starts it again", _INSTALL)
    elif node.provider == NONE:
        yield ok("agent", f"provider is {NONE} in node.json: there is nothing for it to watch")
    elif unit == "active":
        yield fault(
            "agent",
            f"its unit is active, yet it has not looked for a while: {_DEAF}",
            f"`systemctl restart {AGENT}`; `journalctl -u {AGENT}` says what it does",
        )
    elif unit == ABSENT:
        yield fault("agent", f"its unit is not installed: {_DEAF}", f"{_INSTALL}, and in the image (docs/images.md)")
    elif unit:
        yield fault(
            "agent",
            f"its unit is {unit}: {_DEAF}",
            f"`systemctl enable --now {AGENT}`; `journalctl -u {AGENT}` says why",
        )
    else:
        yield fault("agent", f"does not run: {_DEAF}", "there is no systemd here: start `spotburst agent` as root")


def notices(node: NodeConfig, answers: str) -> Iterator[Finding]:
    """``answers``: whose metadata service is at the node's address, "" for nobody's."""
    url = node.metadata_url
    if node.provider in ("", AUTO):
        if answers:
            yield ok("notices", f"{url} answers as {answers} does")
        elif node.node:
            yield fault(
                "notices",
                f"{url} does not answer as any cloud does, and node.json names none: no notice comes",
                f"let nothing between this machine and it (a firewall, a proxy); outside the clouds write provider: {NONE} in node.json",
            )
    elif node.provider in PROVIDERS:
        if answers == node.provider:
            yield ok("notices", f"{url} answers as {answers} does")
            return
        found = f"answers as {answers} does" if answers else "does not answer"
        switched = (
            "; EC2: switch its metadata service on (`aws ec2 modify-instance-metadata-options --http-endpoint enabled`)"
        )
        yield fault(
            "notices",
            f"{url}, where notices of {node.provider} come from, {found}: no notice comes",
            "let nothing between this machine and it (a firewall, a proxy)"
            + (switched if node.provider == "aws" else ""),
        )
