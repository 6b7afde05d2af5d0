"""What tests of the playbooks share: the wheels, ``ansible-playbook``, a job that counts, and looks at machines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.fixtures.nspawn import Machine

REPOSITORY = Path(__file__).resolve().parents[2]
GROUPS = ("controller", "login", "compute", "new_slurm", "accounting", "monitoring")

JOB = """\
#!/bin/bash
#SBATCH --requeue --open-mode=append --output=/shared/out-%j
srun spotburst run --state-dir /tmp/count-$SLURM_JOB_ID -- bash -c '
cd /tmp/count-$SLURM_JOB_ID
while [ ! -e /shared/enough ]; do
  n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n >.n; mv .n n; echo "counted $n on $(hostname)"; sleep 0.5
done'
"""


def burst_yaml(net: int) -> dict[str, Any]:
    """Three nodes of the embedded cloud, whose machines have addresses in ``10.89.<net>.0/24``."""
    offerings = [{"provider": "local", "instance_type": "small", "zone": zone} for zone in ("a", "b")]
    nodeset = {"name": "spot", "nodes": "spot-[1-3]", "cpus": 1, "memory_mb": 500, "offerings": offerings}
    return {
        "cluster": "site",
        "state_dir": "/srv/spotburst",
        "providers": {"local": {"type": "local", "bridge": f"sb-site{net}", "subnet": f"10.89.{net}.0/24"}},
        "checkpoints": {"uri": "file:///shared/checkpoints", "interval": "1s"},
        "power": {"suspend_time": "10s", "suspend_timeout": "5s", "resume_timeout": "120s"},
        "nodesets": [nodeset],
        "partitions": [{"name": "spot", "nodesets": ["spot"], "default": True}],
    }


@dataclass(frozen=True)
class Wheels:
    """This repository's, a later build of the same version, and a folder with all that they need."""

    first: Path
    later: Path
    needed: Path


def wheels(folder: Path, python: str) -> Wheels:
    """Made in the folder, for machines with that Python (``3.11``)."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder / "first", REPOSITORY], check=True)
    first = next((folder / "first").iterdir())
    needed = folder / "needed"
    options = ["--only-binary", ":all:", "--python-version", python, "--dest", needed]
    subprocess.run([*pip, "download", *options, first], check=True)
    (needed / first.name).unlink()
    later = folder / "later" / first.name
    later.parent.mkdir()
    shutil.copy(first, later)
    with zipfile.ZipFile(later, "a") as archive:
        archive.writestr("slurm_plugin/later_build.py", "")
    return Wheels(first, later, needed)


class Ansible:
    """An inventory, variables, and the playbooks of this repository."""

    def __init__(
        self, folder: Path, machines: Mapping[str, Machine], groups: Mapping[str, list[str]], **variables: Any
    ) -> None:
        """``groups``: which machines are in which; ``variables`` win over all others."""
        self._folder, self._variables = folder, folder / "variables.json"
        any_machine = next(iter(machines.values()))
        reach = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(any_machine.key),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={any_machine.known_hosts}",
        }
        # Not by the names that the machines call themselves.
        hosts = {name: {f"at-{name}": {"ansible_host": machine.address}} for name, machine in machines.items()}
        children = {
            group: {"hosts": {k: v for name in groups.get(group, []) for k, v in hosts[name].items()}}
            for group in GROUPS
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": children, "vars": reach}}))
        self.set(**variables)

    def set(self, **variables: Any) -> None:
        """For the plays that come."""
        known = json.loads(self._variables.read_text()) if self._variables.exists() else {}
        self._variables.write_text(json.dumps({**known, **variables}))

    def play(self, book: str, *options: str) -> str:
        """What it prints; it must not fail."""
        done = subprocess.run(
            [
                *(Path(sys.executable).parent / "ansible-playbook", "-i", self._folder / "hosts.yml", f"{book}.yml"),
                *("--extra-vars", f"@{self._variables}", *options),
            ],
            cwd=REPOSITORY / "ansible",
            env={**os.environ, "ANSIBLE_LOCAL_TEMP": str(self._folder / "tmp"), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
        return done.stdout


def changed(output: str) -> list[int]:
    """How many things each machine had changed."""
    return [int(count) for count in re.findall(r"changed=(\d+)", output)]


def files_of_slurm(machine: Machine) -> dict[str, tuple[str, int]]:
    """What lies in /etc/slurm: text and mode."""
    folder = machine.root / "etc/slurm"
    return {
        str(path.relative_to(folder)): (path.read_text(), path.stat().st_mode & 0o777)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def counted(out: Path) -> list[tuple[int, str]]:
    """What a counting job has counted, and on which node."""
    text = out.read_text() if out.exists() else ""
    return [(int(number), node) for number, node in re.findall(r"^counted (\d+) on (\S+)$", text, re.MULTILINE)]


def powered_down(machine: Machine) -> bool:
    """Whether all machines have been given back."""
    asked = "sinfo --noheader --partition=spot --states=powered_down --format=%N"
    return "spot-[1-3]" in machine.run(asked)


def add_user(machine: Machine) -> None:
    """A plain user, alice, who comes in by ssh as root does."""
    machine.run(
        "useradd --create-home --uid 2001 alice; mkdir -p /home/alice/.ssh; cp /root/.ssh/authorized_keys /home/alice/.ssh; "
        "chown -R alice /home/alice/.ssh; chmod 700 /home/alice/.ssh"
    )
