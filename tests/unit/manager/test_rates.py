"""What nodes are told of how often their machines are taken back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from job_wrapper.node_config import load_node_config
from slurm_plugin import render
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.config import load_config
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import OpenNotice
from slurm_plugin.manager.rates import AGAIN, Rates
from slurm_plugin.placement.rate import PRIOR_RATE

SPOT = Offering("local", "local", "default", "small", Market.SPOT)
BURST = """\
cluster: demo
checkpoints: {{uri: "file://{folder}/store"{interval}}}
providers: {{local: {{type: local}}}}
nodesets:
  - {{name: spot, nodes: "spot-[1-3]", cpus: 1, memory_mb: 500, offerings: [{{provider: local, instance_type: small}}]}}
partitions: [{{name: spot, nodesets: [spot]}}]
"""


def test_seen_reclaims_raise_the_rate_and_it_is_read_anew_after_a_while(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    steady = [0.0]
    ledger = Ledger.open(tmp_path / "ledger.db", clock=lambda: now[0])
    rates = Rates(ledger, lambda: steady[0])
    first = rates.of(SPOT)
    assert 1 / math.sqrt(2) <= first / PRIOR_RATE[Market.SPOT] <= math.sqrt(2)
    assert math.log2(first).is_integer()
    for number in range(10):
        id_ = f"sb-{number}"
        ledger.open_intent("spot-1", "spot", "local", SPOT.id, id_)
        ledger.launched(id_, f"i-{number}")
        ledger.record_notice(OpenNotice(f"n-{number}", "spot-1", id_, SPOT.id, None, "cloud", now[0]))
    assert rates.of(SPOT) == first, "a week of the ledger is not read for every launch"
    steady[0] = AGAIN
    assert rates.of(SPOT) >= 4 * first
    ledger.close()


@pytest.mark.parametrize(("interval", "seconds"), [("", 0.0), (", interval: auto", 0.0), (", interval: 15m", 900.0)])
def test_a_node_is_told_its_interval_and_rate(tmp_path: Path, interval: str, seconds: float) -> None:
    burst = tmp_path / "burst.yaml"
    burst.write_text(BURST.format(folder=tmp_path, interval=interval))
    config = load_config(burst)
    nodeset = config.nodesets[0]
    given = render.node_config(config, nodeset, "spot-1", config.offerings_of(nodeset)[0], rate=0.125)
    (tmp_path / "node.json").write_text(given.to_json())
    read = load_node_config({"SPOTBURST_NODE_CONFIG": str(tmp_path / "node.json")})
    assert (read.interval, read.interruption_rate) == (seconds, 0.125)
    assert json.loads((tmp_path / "node.json").read_text())["interval"] == seconds
