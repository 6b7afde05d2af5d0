"""``spotburst nodes``: what Slurm shows of them, and which machines the manager has not seen end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin.ledger import Ledger
from tests.unit.cli.conftest import Said, Site

RECORDED = Path(__file__).parents[1] / "slurm" / "data" / "22.05.8-nodes.json"
"""Of real-1, spot-1 (off) and spot-2 (boots)."""


@pytest.fixture
def slurm(site: Site) -> None:
    """Commands that answer as Slurm 22.05 did."""
    bin_dir = site.folder / "bin"
    bin_dir.mkdir()
    (site.folder / "slurm.conf").touch()
    for name, script in (
        ("scontrol", "echo \"scontrol: unrecognized option '--json'\" >&2; exit 1"),
        ("sinfo", f"cat {RECORDED}"),
        ("squeue", 'echo \'{"jobs": [], "errors": []}\''),
    ):
        (bin_dir / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_dir / name).chmod(0o755)
    burst = site.folder / "burst.yaml"
    burst.write_text(burst.read_text().replace("slurm: {", f"slurm: {{bin_dir: {bin_dir}, "))


def test_machines_stand_beside_their_nodes_until_they_are_gone(
    site: Site, slurm: None, spotburst: Callable[..., Said]
) -> None:
    def machines() -> dict[str, list[str]]:
        return {row["node"]: row["machines"] for row in json.loads(spotburst("nodes", "--json").out)}

    assert machines() == {"spot-1": [], "spot-2": [], "spot-3": []}, "no manager has run here"
    (site.folder / "state").mkdir()
    ledger = Ledger.open(site.folder / "state" / "ledger.db")
    off, asked, former = (ledger.open_intent(n, "spot", "local", "o") for n in ("spot-1", "spot-2", "former-1"))
    ledger.launched(off.launch_id, "i-1")
    ledger.retire(off.launch_id, "Slurm powered its node down")
    assert machines() == {
        "spot-1": ["i-1"],
        "spot-2": [asked.launch_id],
        "spot-3": [],
        "former-1": [former.launch_id],
    }, "also of a node that is off, and of one that burst.yaml names no longer"
    assert "i-1" in spotburst("nodes").out
    ledger.close_intent(off.launch_id, "its machine is gone")
    assert machines()["spot-1"] == []
    ledger.close()
