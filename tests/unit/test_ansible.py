"""What can be said of the Ansible folder without a machine: it is clean, its examples are valid, its policies are policies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin import render
from slurm_plugin.cloud import tags
from slurm_plugin.cloud.aws import names
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


def manager_may(action: str, **context: Any) -> bool:
    """By the policy of EC2's manager. ``context``: condition keys, ``_`` for what a name of Python's can't have."""
    document = json.loads((FOLDER / "policies/aws-manager.json").read_text())
    known = {re.sub(r"\W", "_", key): value for key, value in context.items()}

    def holds(operator: str, wanted: dict[str, Any]) -> bool:
        for key, values in wanted.items():
            allowed = [values] if isinstance(values, str) else values
            given = known.get(re.sub(r"\W", "_", key))
            told = [given] if isinstance(given, str) else given
            if told is None or not all(any(fnmatchcase(one, value) for value in allowed) for one in told):
                return False
        return operator in ("StringEquals", "ForAllValues:StringLike")

    return any(
        action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
        and all(holds(operator, wanted) for operator, wanted in statement.get("Condition", {}).items())
        for statement in document["Statement"]
    )


def test_the_manager_may_make_each_call_that_it_makes_of_ec2() -> None:
    source = "".join(path.read_text() for path in Path(names.__file__).parent.glob("*.py"))
    calls = set(re.findall(r"\.(?:read|write|pages)\(\s*\"(\w+)\"", source))
    assert {"create_fleet", "create_tags", "describe_instances", "describe_spot_price_history"} <= calls
    here = {"aws_RequestedRegion": "REGION", "aws_ResourceTag_spotburst_cluster": "CLUSTER", "aws_TagKeys": []}
    for call in calls:
        action = "ec2:" + "".join(word.capitalize() for word in call.split("_"))
        assert manager_may(action, **here), action


def test_the_manager_names_machines_of_its_cluster_and_no_others() -> None:
    members = [(f"launch-{n}", f"n{n}") for n in range(12)]
    calls = names.place_tags(members, {launch_id: f"i-{launch_id}" for launch_id, _ in members})
    calls += names.place_tags(members[:2], {launch_id: f"i-{launch_id}" for launch_id, _ in members[:2]})
    keys = sorted({key for _, given in calls for key in given})
    assert len(keys) == 4
    for cluster, allowed in (("CLUSTER", True), ("another", False)):
        assert manager_may("ec2:CreateTags", aws_ResourceTag_spotburst_cluster=cluster, aws_TagKeys=keys) is allowed
    owner = {"aws_ResourceTag_spotburst_cluster": "CLUSTER", "aws_TagKeys": [tags.CLUSTER]}
    assert not manager_may("ec2:CreateTags", **owner), "nor takes another's"


def tasks_of(book: str) -> list[str]:
    """Of all plays, with their roles, in order."""
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", INVENTORIES[0] / "hosts.yml", book, "--list-tasks"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"^ {6}(.+?)\s+TAGS:", done.stdout, re.MULTILINE)


def test_removal_looks_for_machines_first_and_installs_nothing() -> None:
    tasks = tasks_of("remove.yml")
    assert [name.partition(" : ")[2] for name in tasks[:3]] == [
        "What of it is still there",
        "Which nodes are up or have machines",
        "Not while machines of the cloud are there",
    ]
    assert not set(tasks) & set(tasks_of("upgrade.yml")), "nor restarts a manager whose unit it has just taken away"
