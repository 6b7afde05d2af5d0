"""What can be said of the Ansible folder without a machine: it is clean, its examples are valid, its policies are policies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slurm_plugin import render
from slurm_plugin.config import load_config

FOLDER = Path(__file__).resolve().parents[2] / "ansible"
INVENTORIES = sorted(FOLDER.glob("inventories/*"))


def test_lint_has_nothing_to_say(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [programs / "ansible-lint", "--profile", "production", "--offline", "--nocolor", "-q"],
        cwd=FOLDER,
        # It looks for the other programs of Ansible on PATH, and keeps a cache.
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.name)
def test_each_inventory_is_a_site(inventory: Path) -> None:
    config = load_config(inventory / "burst.yaml")
    programs = render.Programs.beside_python(Path("/opt/spotburst/bin/python"))
    text = render.spotburst_conf(config, (24, 11, 5), programs, Path("/etc/slurm/spotburst.conf"))
    assert "ResumeProgram=/opt/spotburst/bin/spotburst-resume" in text
    groups = yaml.safe_load((inventory / "hosts.yml").read_text())["all"]["children"]
    assert set(groups) <= {"controller", "login", "compute", "new_slurm", "accounting"}
    assert groups["controller"]["hosts"]


@pytest.mark.parametrize("policy", sorted(FOLDER.glob("policies/aws-*.json")), ids=lambda path: path.name)
def test_policies_give_no_more_than_is_named(policy: Path) -> None:
    document = json.loads(policy.read_text())
    for statement in document["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        assert not any("*" in action for action in actions)
        looks_only = all(action.partition(":")[2].startswith(("Describe", "List", "Get")) for action in actions)
        assert looks_only or statement["Resource"] != "*" or "Condition" in statement, statement["Sid"]
