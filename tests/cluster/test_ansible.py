"""The playbooks, over ssh, on machines that boot with systemd: spotburst comes to a cluster that runs, is upgraded beneath a job, and goes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.playbooks import (
    JOB,
    Ansible,
    Wheels,
    add_user,
    burst_yaml,
    changed,
    counted,
    files_of_slurm,
    powered_down,
    wheels,
)
from tests.fixtures.nspawn import Machine, machines
from tests.fixtures.private_slurm import wait_for
from tests.fixtures.terminal import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]

ADDRESSES = {"controller": "10.88.7.2", "login": "10.88.7.3", "image": "10.88.7.4"}

SLURM_CONF = """\
# The site's own.
ClusterName=site
SlurmctldHost=controller(10.88.7.2)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/srv/slurm
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
MpiDefault=none
NodeName=own-1 NodeAddr=10.88.7.4 NodeHostname=image
PartitionName=own Nodes=own-1
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    return wheels(tmp_path_factory.mktemp("wheels"), "3.11")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """A controller, a login machine and a node with a Slurm that the site has made itself. The node is also what images are made from."""
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
            machine.run("systemctl restart munge")
            add_user(machine)
        controller.run("mkdir -p /srv/slurm; echo 1 >/proc/sys/net/ipv4/ip_forward; systemctl enable --now slurmctld")
        login.run("ip route add 10.89.7.0/24 via 10.88.7.2")
        yield found


def completed(machine: Machine, typed: str, whole: str) -> None:
    """Tab makes that of it, in a plain user's terminal."""
    with Terminal([*machine.ssh("alice", "-tt"), "bash"], {**os.environ, "TERM": "dumb"}) as terminal:
        terminal.until(f"alice@{machine.name}:~$ ")
        terminal.type(f"{typed}\t")
        terminal.until(whole)
        terminal.type("\x15exit\n")  # the line is thrown away
        assert terminal.end() == 0


def test_a_site_from_first_play_to_last(site: dict[str, Machine], built: Wheels, tmp_path: Path) -> None:
    controller, login, image = site["controller"], site["login"], site["image"]
    (controller.root / "etc/slurm/slurm.conf").chmod(0o664)
    before = {name: files_of_slurm(machine) for name, machine in site.items()}
    (tmp_path / "burst.yaml").write_text(yaml.safe_dump(burst_yaml(7)))
    ansible = Ansible(
        tmp_path,
        site,
        {"controller": ["controller"], "login": ["login"], "compute": ["image"]},
        spotburst_package=str(built.first),
        spotburst_wheelhouse=str(built.needed),
        controller_user="root",
        controller_state_dir="/srv/spotburst",
        store_secrets={"AWS_SECRET_ACCESS_KEY": 'wJalr"$X`\\tn/b'},
    )

    first = ansible.play("site", "--check", "--diff")
    assert all(changed(first)), "there is much to do, and it is not done yet"
    assert "wJalr" not in first
    assert {name: files_of_slurm(machine) for name, machine in site.items()} == before
    ansible.play("site")
    assert changed(ansible.play("site")) == [0, 0, 0]
    for machine in site.values():
        conf = machine.root / "etc/slurm/slurm.conf"
        assert conf.read_text() == SLURM_CONF + "Include /etc/slurm/spotburst.conf\n"
    assert (controller.root / "etc/slurm/slurm.conf").stat().st_mode & 0o777 == 0o664, "as the site has it"
    secrets = controller.root / "etc/slurm/spotburst-store.env"
    assert secrets.stat().st_mode & 0o777 == 0o600
    pid = controller.run("systemctl show --property=MainPID --value spotburst-manager").strip()
    given = controller.run(f"tr '\\0' '\\n' </proc/{pid}/environ").splitlines()
    assert 'AWS_SECRET_ACCESS_KEY=wJalr"$X`\\tn/b' in given, "as it stands, whatever signs are in it"

    for machine in (login, controller):
        assert machine.run("man -w spotburst-run", user="alice").endswith("/man1/spotburst-run.1\n")
        completed(machine, "spotburst des", "spotburst describe ")

    # What the image's first boot does, on the site's own node.
    assert image.run("systemctl is-enabled slurmd spotburst-agent", check=False).split() == ["disabled"] * 2
    assert image.run("systemd-analyze verify spotburst-agent.service 2>&1") == ""
    image.run("systemctl start slurmd")

    shared = controller.root.parent.parent / "shared"
    (shared / "job").write_text(JOB)
    job = login.run("sbatch --parsable /shared/job", user="alice").strip()
    out = shared / f"out-{job}"
    wait_for(lambda: len(counted(out)) > 3, "the job to count on a node that was booted for it", 400)
    assert login.run("srun --partition=spot hostname", user="alice", timeout=400).startswith("spot-")
    assert f"{job} spot R" in login.run("squeue --noheader --format='%i %P %t'", user="alice")

    ran_with = (controller.root / "opt/spotburst/bin").readlink()
    ansible.set(spotburst_package=str(built.later))
    ansible.play("upgrade")
    for machine in site.values():
        assert (machine.root / "opt/spotburst/bin").readlink() != ran_with
        assert list((machine.root / "opt/spotburst/versions").glob("*/lib/*/site-packages/slurm_plugin/later_build.py"))
    # An image's slurmd waits for its first boot; this machine is a node of the site's own as well.
    image.run("systemctl start slurmd")

    nodes = {node for _, node in counted(out)}
    assert len(nodes) == 1, "the upgrade cost no attempt"
    controller.run(f"spotburst local reclaim {nodes.pop()} --config /etc/slurm/burst.yaml")
    wait_for(lambda: len({node for _, node in counted(out)}) == 2, "the job to count on its next node", 400)
    (shared / "enough").touch()
    wait_for(lambda: "COMPLETED" in login.run(f"scontrol show job {job}", check=False), "the job to end", 180)
    numbers = [number for number, _ in counted(out)]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1)), "no number is left out"
    assert len(json.loads(login.run(f"spotburst attempts {job} --json", user="alice"))) == 2

    wait_for(lambda: powered_down(login), "the machines to be given back", 300)
    # The site's own nodes are never powered down.
    wait_for(
        lambda: login.run("sinfo --noheader --nodes=own-1 --format=%t").split() == ["idle"], "the site's node", 180
    )
    assert login.run("srun --partition=own hostname", user="alice") == "image\n"
    # A newer build lies there than the one that runs, and it was broken off before.
    ansible.set(spotburst_package=str(built.first))
    for _ in range(2):
        ansible.play("remove")
    assert {name: files_of_slurm(machine) for name, machine in site.items()} == before
    for machine in site.values():
        assert not (machine.root / "opt/spotburst").exists()
        assert machine.run("find /usr -iname '*spotburst*'") == ""
        assert machine.run("systemctl list-unit-files --no-legend 'spotburst*'", check=False) == ""
    assert not secrets.exists()
    assert login.run("sinfo --noheader --format=%P").split() == ["own"]
    image.run("systemctl restart slurmd")
    wait_for(lambda: "idle" in login.run("sinfo --noheader --nodes=own-1 --format=%t"), "the site's node", 180)
    assert login.run("srun --partition=own hostname", user="alice") == "image\n"
