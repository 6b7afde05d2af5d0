"""The playbooks build a whole cluster on Debian 13: Slurm 24.11 with accounting, a node's image, spotburst, and Prometheus beside it.

It is played when asked for, ``SPOTBURST_TEST_NEW_CLUSTER=1``: by itself it takes more than six minutes of two cores, its system (1 GB) two more when it
is made, and what it does beyond ``test_ansible`` is seldom touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.playbooks import JOB, Ansible, add_user, burst_yaml, changed, counted, powered_down, wheels
from tests.fixtures.nspawn import TRIXIE, Machine, machines
from tests.fixtures.private_slurm import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("SPOTBURST_TEST_NEW_CLUSTER" not in os.environ, reason="SPOTBURST_TEST_NEW_CLUSTER is not set"),
]

ADDRESSES = {"controller": "10.88.8.2", "login": "10.88.8.3", "image": "10.88.8.4"}
PASSWORD = "kept-in-a.vault"

VARIABLES = {
    # What namespaces within a machine within a machine leave of Slurm.
    "controller_user": "root",
    "controller_state_dir": "/srv/spotburst",
    "slurm_cluster": "site",
    "slurm_state_dir": "/srv/slurm",
    "slurm_user": "root",
    "slurm_proctrack": "proctrack/linuxproc",
    "slurm_task_plugin": "",
    "slurm_packages": {
        "controller": ["munge", "slurmctld", "slurmd", "slurm-client", "iproute2"],
        "login": ["munge", "slurm-client"],
        "compute": ["munge", "slurmd", "slurm-client"],
        "accounting": ["munge"],
    },
    "slurm_conf_more": [
        "SlurmdSpoolDir=/run/slurmd",
        "SlurmdLogFile=/run/slurmd.log",
        "SlurmdParameters=config_overrides",
        "NodeName=own-1 NodeAddr=10.88.8.4 NodeHostname=image",
        "PartitionName=own Nodes=own-1",
    ],
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """Machines with packages, and nothing set up."""
    folder = tmp_path_factory.mktemp("new")
    shared = folder / "shared"
    (shared / "checkpoints").mkdir(parents=True)
    for place in (shared, shared / "checkpoints"):
        place.chmod(0o1777)
    with machines(folder, ADDRESSES, shared, bridge="sbansnew", gateway="10.88.8.1", suite=TRIXIE) as found:
        for machine in found.values():
            add_user(machine)
        found["controller"].run("echo 1 >/proc/sys/net/ipv4/ip_forward")
        found["login"].run("ip route add 10.89.8.0/24 via 10.88.8.2")
        yield found


def vault(folder: Path, **secrets: str) -> list[str]:
    """A file of secrets that only its password opens, as options for ``ansible-playbook``."""
    (folder / "password").write_text("opens\n")
    (folder / "secrets.yml").write_text(yaml.safe_dump(secrets))
    opened = ["--vault-password-file", str(folder / "password")]
    program = Path(sys.executable).parent / "ansible-vault"
    subprocess.run([program, "encrypt", *opened, folder / "secrets.yml"], check=True, capture_output=True)
    return [*opened, "--extra-vars", f"@{folder / 'secrets.yml'}"]


def test_a_cluster_from_nothing(bare: dict[str, Machine], tmp_path: Path) -> None:
    controller, login, image = bare["controller"], bare["login"], bare["image"]
    built = wheels(tmp_path / "wheels", "3.13")
    (tmp_path / "burst.yaml").write_text(yaml.safe_dump({**burst_yaml(8), "monitoring": {"port": 9464}}))
    groups = {
        "controller": ["controller"],
        "login": ["login"],
        "compute": ["image"],
        "new_slurm": list(bare),
        "accounting": ["controller"],
        "monitoring": ["controller"],
    }
    packages = {"spotburst_package": str(built.first), "spotburst_wheelhouse": str(built.needed)}
    ansible = Ansible(tmp_path, bare, groups, **packages, **VARIABLES)
    secrets = vault(tmp_path, accounting_password=PASSWORD)

    shown = ansible.play("site", "--check", "--diff", *secrets)
    assert all(changed(shown))
    assert not (controller.root / "etc/slurm/slurm.conf").exists()
    shown += ansible.play("site", "--diff", *secrets)
    again = ansible.play("site", "--diff", *secrets)
    assert changed(again) == [0, 0, 0]
    assert PASSWORD not in shown + again
    assert controller.run("stat --format=%a /etc/slurm/slurmdbd.conf").split() == ["600"]
    keys = {
        machine.run("cd /etc/munge; stat --format='%U %a' munge.key; sha256sum munge.key") for machine in bare.values()
    }
    assert len(keys) == 1
    assert keys.pop().startswith("munge 400\n")

    image.run("systemctl start slurmd")
    shared = controller.root.parent.parent / "shared"
    (shared / "job").write_text(JOB)
    job = login.run("sbatch --parsable /shared/job", user="alice").strip()
    out = shared / f"out-{job}"
    wait_for(lambda: len(counted(out)) > 3, "the job to count on a node that was booted for it", 300)
    controller.run(f"spotburst local reclaim {counted(out)[-1][1]} --config /etc/slurm/burst.yaml")
    wait_for(lambda: len({node for _, node in counted(out)}) == 2, "the job to count on its next node", 300)
    (shared / "enough").touch()
    wait_for(lambda: "COMPLETED" in login.run(f"sacct -Xn -o state -j {job}", user="alice"), "its end", 120)
    numbers = [number for number, _ in counted(out)]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1)), "no number is left out"
    asked = "promtool query instant http://127.0.0.1:9090 'sum(spotburst_reclaims_total)'"
    wait_for(lambda: "=> 1 @" in controller.run(asked), "Prometheus to know of the reclaim", 60)

    wait_for(lambda: powered_down(login), "the machines to be given back", 180)
    assert login.run("srun --partition=own hostname", user="alice") == "image\n", (
        "the cluster's own nodes are not powered down"
    )
    ansible.play("remove")
    assert login.run("sinfo --noheader --format=%P").split() == ["own"]
    assert "spotburst" not in (controller.root / "etc/prometheus/prometheus.yml").read_text()
    image.run("systemctl restart slurmd")
    wait_for(lambda: "idle" in login.run("sinfo --noheader --nodes=own-1 --format=%t"), "the cluster's own node", 120)
    assert login.run("srun --partition=own hostname", user="alice") == "image\n"
