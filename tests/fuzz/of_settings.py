"""What people write: burst.yaml, the table of prices, a node's settings, and words of the command line."""

from __future__ import annotations

import argparse
import json
import math
import os
from contextlib import suppress
from pathlib import Path

import typer

from job_wrapper.durations import seconds_of
from job_wrapper.errors import SpotburstError, UsageError
from job_wrapper.node_config import load_node_config
from job_wrapper.run import identity, options
from job_wrapper.run.local_job import local_job_alive
from job_wrapper.store.open import _backend
from resume_scripts import record
from slurm_plugin.cli import free, job_ids
from slurm_plugin.config import load_config
from slurm_plugin.config_placement import parse_share
from slurm_plugin.errors import ConfigError
from slurm_plugin.prices import load_prices, offering_of
from slurm_plugin.slurm import orders
from tests.fuzz.target import Feed, Room, Target, pure, text
from tests.unit.test_config import GOOD

_YAML = """\
cluster: demo
state_dir: /var/lib/spotburst
checkpoints: {uri: "s3://bucket/prefix", interval: auto, keep: 3}
providers:
  ec2: &aws {type: aws, region: eu-west-1, image: ami-1, subnets: {eu-west-1a: subnet-1}}
  two: {<<: *aws, region: eu-west-2}
nodesets:
  - name: spot
    nodes: spot-[1-4]
    cpus: 4
    memory_mb: 1000
    offerings:
      - {provider: ec2, instance_type: g4dn.xlarge, zone: eu-west-1a}
    placement: {policy: price, max_price: 1.5, on_demand_after: {failures: 2, wait: 10m}, final_on_demand: 10%}
partitions:
  - {name: spot, nodesets: [spot], grace_time: 30s, default: true}
"""
_NODE = {"cluster": "demo", "node": "spot-1", "provider": "aws", "uri": "s3://b/p", "interval": 600.0, "keep": 3, "notice_seconds": 30, "interruption_rate": 0.1}  # fmt: skip
_WORDS = ("30s", "1.5h", "auto", "512MiB", "100G", "1e3", "10%", "12345", "123_4", "123+1", "123_[4-9]", "123.batch", "123_4,5", "JobId=123", "7d", "0.5",
          "file:///shared/ckpt", "s3://bucket/prefix", "gs://bucket/p", "az://container@account.dfs.core.windows.net/p", "az://container/p", "aws/eu-west-1/a/g5.xlarge/spot",
          "local-1-2-host", "22.05.8", "spot-[1-4]")  # fmt: skip


def targets() -> list[Target]:
    """All of them."""
    prices = (Path(__file__).parents[2] / "templates/prices.yaml").read_bytes()
    return [
        Target("settings", _settings, (_YAML.encode(), json.dumps(GOOD).encode()), (ConfigError,)),
        Target("prices", _prices, (prices, b'{"date": "2026-05-02", "currency": "USD", "machines": [{"provider": "aws", "instance_type": "x", "spot": 0.5}]}'), (ConfigError,)),
        Target("node-settings", _node, (json.dumps(_NODE).encode(),), (UsageError,)),
        pure("words", _words, _WORDS),
    ]  # fmt: skip


def _settings(room: Room) -> Feed:
    path = room.file("burst.yaml")

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        os.environ["SPOTBURST_CONFIG"] = str(path)
        with suppress(Exception):  # whatever it is, it is told as slurmctld's log has it
            record._settings()
        config = load_config(path)
        for nodeset in config.nodesets:
            config.rules_of(nodeset)
            for offering in config.offerings_of(nodeset):
                config.digest_of(offering)

    return feed


def _prices(room: Room) -> Feed:
    path = room.file("prices.yaml")

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        load_prices(path)

    return feed


def _node(room: Room) -> Feed:
    path = room.file("node.json")

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        config = load_node_config({"SPOTBURST_NODE_CONFIG": str(path)})
        assert math.isfinite(config.interval) and config.keep >= 1

    return feed


def _words(data: bytes) -> None:
    """Each reader of a word may refuse it as its caller understands it."""
    word = text(data)
    for read in (options.parse_duration, options.parse_interval, options.parse_size, options._count):
        with suppress(argparse.ArgumentTypeError):
            assert math.isfinite(read(word))
    for take in (seconds_of, parse_share):
        with suppress(ValueError):
            take(word)
    for use in (free._seconds, lambda w: identity._number({"N": w}, "N", 1), lambda w: _backend(w, "", False)):
        with suppress(SpotburstError, typer.BadParameter):
            use(word)
    job_ids.is_job_id(word)
    job_ids.instead_of(word)
    job_ids.holds(word, "123_4")
    job_ids.holds("123_[4-9:2%3]", word)
    offering_of(word)
    local_job_alive(word)
    orders.one_line(word)
