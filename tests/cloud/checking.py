"""What ``spotburst check`` finds at a cloud, of a burst.yaml with one provider."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from slurm_plugin.checks.finding import Finding, State
from slurm_plugin.cli.at_clouds import at_clouds
from slurm_plugin.config import load_config


def found(
    folder: Path, provider: Mapping[str, Any], *offerings: Mapping[str, Any], nodes: int = 4, nodesets: int = 1
) -> list[Finding]:
    """All that is found. ``nodes``: of each nodeset; each nodeset has all the offerings."""
    bought = [{"provider": "cloud", "zone": "any", **offering} for offering in offerings]
    settings = {
        "cluster": "demo",
        "state_dir": str(folder / "state"),
        "checkpoints": {"uri": f"file://{folder}/store"},
        "providers": {"cloud": dict(provider)},
        "nodesets": [
            {"name": f"s{n}", "nodes": f"s{n}-[1-{nodes}]", "cpus": 2, "memory_mb": 500, "offerings": bought}
            for n in range(1, nodesets + 1)
        ],
        "partitions": [{"name": "all", "nodesets": [f"s{n}" for n in range(1, nodesets + 1)]}],
    }
    (folder / "burst.yaml").write_text(yaml.safe_dump(settings))
    return list(at_clouds(load_config(folder / "burst.yaml")))


def of(findings: list[Finding], what: str) -> tuple[State, str, str]:
    """The one finding about that: how it stands, what was found, what to do."""
    (one,) = [finding for finding in findings if finding.what == what]
    return one.state, one.detail, one.fix


def assert_well(findings: list[Finding]) -> None:
    """Nothing is wrong."""
    assert [(one.what, one.state) for one in findings] == [
        ("instance types", State.OK),
        ("images", State.OK),
        ("quotas", State.OK),
    ]


def assert_not_permitted(finding: tuple[State, str, str], permission: str) -> None:
    """It could not be told, and what is to be given is named."""
    state, detail, fix = finding
    assert state is State.UNKNOWN
    assert detail.startswith(f"could not be told: {permission} is not given")
    assert permission in fix


def states(findings: list[Finding], what: str) -> list[State]:
    """Of all findings about that."""
    return [finding.state for finding in findings if finding.what == what]
