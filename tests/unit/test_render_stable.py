"""What is rendered from the same burst.yaml is the same, byte for byte: so a tool may compare it, and tell slurmctld only of a change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from slurm_plugin.local_cluster.settings import default_settings

AWS = {"type": "aws", "region": "eu-west-1", "image": "ami-1", "subnets": {"eu-west-1a": "subnet-1"}}
ALL = """
import sys
from pathlib import Path
from slurm_plugin import render
from slurm_plugin.config import load_config
config = load_config(Path(sys.argv[1]))
programs = render.Programs.beside_python()
for version in ((22, 5, 8), (24, 11, 5)):
    print(render.spotburst_conf(config, version, programs, Path("/etc/slurm/spotburst.conf")))
print(render.gres_conf(config), render.aws_events(config, "ec2"))
"""


def test_the_same_settings_give_the_same_files(tmp_path: Path) -> None:
    plan = {**default_settings(40, ondemand=3, zones=("a", "b")), "checkpoints": {"uri": "file:///shared"}}
    plan["providers"]["ec2"] = AWS
    plan["nodesets"][0]["features"] = [f"feature-{n}" for n in range(9)]
    path = tmp_path / "burst.yaml"
    path.write_text(yaml.safe_dump(plan))

    def rendered(seed: str) -> str:
        # Sets and dictionaries of texts come in another order with each seed.
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", ALL, str(path)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    first = rendered("1")
    assert "feature-8" in first
    assert rendered("2") == first
