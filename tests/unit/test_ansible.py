"""What can be said of the Ansible folder without a machine: it is clean, its examples are valid, its plays are in order."""

from __future__ import annotations

import json
import os
import re
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
    assert set(groups) <= {"controller", "login", "compute", "new_slurm", "accounting", "monitoring"}
    assert groups["controller"]["hosts"]


CODENAMES = {"12": "bookworm", "13": "trixie", "22.04": "jammy", "24.04": "noble"}


def test_each_role_names_the_systems_that_are_asserted() -> None:
    known = yaml.safe_load((FOLDER / "roles/spotburst/defaults/main.yml").read_text())["spotburst_platforms"]
    named = {name: [CODENAMES[version] for version in versions] for name, versions in known.items()}
    for role in FOLDER.glob("roles/*"):
        told = yaml.safe_load((role / "meta/main.yml").read_text())["galaxy_info"]["platforms"]
        assert {one["name"]: one["versions"] for one in told} == named, role.name


def test_another_system_is_refused_with_what_to_do() -> None:
    others = {"spotburst_platforms": {"Debian": ["9"], "Ubuntu": []}, "ansible_python_interpreter": sys.executable}
    done = play("site.yml", "--check", "--extra-vars", json.dumps(others))
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    assert "localhost has" in said
    assert "They know Debian 9" in said
    assert "spotburst_any_platform=true" in said
    assert "changed=0" in said, "nothing was done"


def play(book: str, *options: str) -> subprocess.CompletedProcess[str]:
    """On this machine."""
    return subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "-i",
            FOLDER / "inventories/one-machine/hosts.yml",
            book,
            *options,
        ],
        cwd=FOLDER,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def tasks_of(book: str) -> list[str]:
    """Of all plays, with their roles, in order."""
    done = play(book, "--list-tasks")
    done.check_returncode()
    return re.findall(r"^ {6}(.+?)\s+TAGS:", done.stdout, re.MULTILINE)


def test_removal_looks_for_machines_first_and_installs_nothing() -> None:
    tasks = tasks_of("remove.yml")
    assert [name.partition(" : ")[2] for name in tasks[:3]] == [
        "What of it is still there",
        "Which nodes are up or have machines",
        "Not while machines of the cloud are there",
    ]
    assert not set(tasks) & set(tasks_of("upgrade.yml")), "nor restarts a manager whose unit it has just taken away"
