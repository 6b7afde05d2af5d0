"""The playbooks, over ssh, on machines that boot with systemd: spotburst comes to a cluster that runs, is upgraded beneath a job, and goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.nspawn import Machine, machines
from tests.fixtures.private_slurm import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESSES = {"controller": "10.88.7.2", "login": "10.88.7.3"}

SLURM_CONF = """\
# The site's own.
ClusterName=site
SlurmctldHost=controller(10.88.7.2)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurm
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
MpiDefault=none
NodeName=own-1 NodeAddr=10.88.7.2 State=DOWN
PartitionName=own Nodes=own-1
"""

BURST_YAML = {
    "cluster": "site",
    "providers": {"local": {"type": "local", "bridge": "sb-site", "subnet": "10.89.7.0/24"}},
    "checkpoints": {"uri": "file:///shared/checkpoints", "interval": "1s"},
    "power": {"suspend_time": "10s", "suspend_timeout": "5s", "resume_timeout": "120s"},
    "nodesets": [
        {
            "name": "spot",
            "nodes": "spot-[1-3]",
            "cpus": 1,
            "memory_mb": 500,
            "offerings": [{"provider": "local", "instance_type": "small", "zone": zone} for zone in ("a", "b")],
        }
    ],
    "partitions": [{"name": "spot", "nodesets": ["spot"], "default": True}],
}

JOB = """\
#!/bin/bash
#SBATCH --requeue --open-mode=append --output=/shared/out-%j
srun spotburst run --state-dir /tmp/count-$SLURM_JOB_ID -- bash -c '
cd /tmp/count-$SLURM_JOB_ID
while [ ! -e /shared/enough ]; do
  n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n >.n; mv .n n; echo "counted $n on $(hostname)"; sleep 0.5
done'
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """This repository's wheel, a later build of it, and a folder with all that it needs."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder / "first", REPOSITORY], check=True)
    first = next((folder / "first").iterdir())
    subprocess.run([*pip, "download", "--only-binary", ":all:", "--dest", folder / "needed", first], check=True)
    (folder / "needed" / first.name).unlink()
    later = folder / "later" / first.name
    later.parent.mkdir()
    shutil.copy(first, later)
    with zipfile.ZipFile(later, "a") as archive:
        archive.writestr("slurm_plugin/later_build.py", "")
    return first, later, folder / "needed"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """A controller and a login machine with a Slurm that the site has made itself."""
    folder = tmp_path_factory.mktemp("site")
    shared = folder / "shared"
    (shared / "checkpoints").mkdir(parents=True)
    for place in (shared, shared / "checkpoints"):
        place.chmod(0o1777)
    with machines(folder, ADDRESSES, shared, bridge="sbansible", gateway="10.88.7.1") as found:
        controller, login = found["controller"], found["login"]
        shutil.copy(controller.root / "etc/munge/munge.key", folder / "munge.key")
        for machine in found.values():
            shutil.copy(folder / "munge.key", machine.root / "etc/munge/munge.key")
            (machine.root / "etc/slurm/slurm.conf").write_text(SLURM_CONF)
            machine.run("systemctl restart munge; useradd --create-home --uid 2001 alice")
            machine.run("mkdir -p /home/alice/.ssh; cp /root/.ssh/authorized_keys /home/alice/.ssh")
            machine.run("chown -R alice /home/alice/.ssh; chmod 700 /home/alice/.ssh")
        controller.run(
            "mkdir -p /var/spool/slurm; echo 1 >/proc/sys/net/ipv4/ip_forward; systemctl enable --now slurmctld"
        )
        login.run("ip route add 10.89.7.0/24 via 10.88.7.2")
        yield found


class Ansible:
    def __init__(self, folder: Path, site: dict[str, Machine], **variables: Any) -> None:
        self._folder, self._variables = folder, folder / "variables.json"
        controller, login = site["controller"], site["login"]
        reach = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(controller.key),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={controller.known_hosts}",
        }
        groups = {
            "controller": {"hosts": {"ctl": {"ansible_host": controller.address}}},
            "login": {"hosts": {"gate": {"ansible_host": login.address}}},
            "compute": {},
            "new_slurm": {},
            "accounting": {},
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": reach}}))
        (folder / "burst.yaml").write_text(yaml.safe_dump(BURST_YAML))
        self.set(**variables)

    def set(self, **variables: Any) -> None:
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
    return [int(count) for count in re.findall(r"changed=(\d+)", output)]


def files_of_slurm(machine: Machine) -> dict[str, str]:
    folder = machine.root / "etc/slurm"
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def counted(out: Path) -> list[tuple[int, str]]:
    text = out.read_text() if out.exists() else ""
    return [(int(number), node) for number, node in re.findall(r"^counted (\d+) on (\S+)$", text, re.MULTILINE)]


def test_a_site_from_first_play_to_last(
    site: dict[str, Machine], wheels: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    controller, login = site["controller"], site["login"]
    first, later, needed = wheels
    (controller.root / "etc/slurm/slurm.conf").chmod(0o664)
    before = files_of_slurm(controller)
    ansible = Ansible(
        tmp_path, site, spotburst_package=str(first), spotburst_wheelhouse=str(needed), controller_user="root"
    )

    assert all(changed(ansible.play("site", "--check"))), "there is much to do, and it is not done yet"
    assert files_of_slurm(controller) == before
    ansible.play("site")
    assert changed(ansible.play("site")) == [0, 0]
    assert (controller.root / "etc/slurm/slurm.conf").read_text() == SLURM_CONF + "Include /etc/slurm/spotburst.conf\n"
    assert (controller.root / "etc/slurm/slurm.conf").stat().st_mode & 0o777 == 0o664, "as the site has it"

    shared = controller.root.parent.parent / "shared"
    (shared / "job").write_text(JOB)
    job = login.run("sbatch --parsable /shared/job", user="alice").strip()
    out = shared / f"out-{job}"
    wait_for(lambda: len(counted(out)) > 3, "the job to count on a node that was booted for it", 180)
    assert login.run("srun --partition=spot hostname", user="alice", timeout=180).startswith("spot-")

    ran_with = (controller.root / "opt/spotburst/bin").readlink()
    ansible.set(spotburst_package=str(later))
    ansible.play("upgrade")
    assert (controller.root / "opt/spotburst/bin").readlink() != ran_with
    assert login.run(
        "test -e /opt/spotburst/bin/../lib/python3*/site-packages/slurm_plugin/later_build.py && echo there"
    )

    nodes = {node for _, node in counted(out)}
    assert len(nodes) == 1, "the upgrade cost no attempt"
    controller.run(f"spotburst local reclaim {nodes.pop()} --config /etc/slurm/burst.yaml")
    wait_for(lambda: len({node for _, node in counted(out)}) == 2, "the job to count on its next node", 180)
    (shared / "enough").touch()
    wait_for(lambda: "COMPLETED" in login.run(f"scontrol show job {job}", check=False), "the job to end", 60)
    numbers = [number for number, _ in counted(out)]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1)), "no number is left out"
    attempts = json.loads(login.run(f"spotburst attempts {job} --json", user="alice"))
    assert len(attempts) == 2

    wait_for(
        lambda: "spot-[1-3]" in login.run("sinfo --noheader --partition=spot --states=powered_down --format=%N"),
        "the machines to be given back",
        120,
    )
    # A newer build lies there than the one that runs, and it was broken off before.
    ansible.set(spotburst_package=str(first))
    for _ in range(2):
        ansible.play("remove")
    assert files_of_slurm(controller) == before
    assert not (controller.root / "opt/spotburst").exists()
    assert controller.run("systemctl is-active slurmctld").strip() == "active"
    assert login.run("sinfo --noheader --format=%P").split() == ["own"]
