"""A node that boots for the first time with what the image's recipe puts there, on a machine with systemd and cloud-init."""

from __future__ import annotations

import base64
import gzip
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from slurm_plugin import image, render
from slurm_plugin.config import load_config
from slurm_plugin.generated import Around, everything
from tests.fixtures import cloud_init
from tests.fixtures.plain_users import BEING_COMPILED

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]
BURST = {
    "cluster": "lab",
    "checkpoints": {"uri": "s3://checkpoints/lab"},
    "providers": {
        "ec2": {"type": "aws", "region": "eu-west-1", "image": "ami-1", "subnets": {"eu-west-1a": "subnet-1"}},
        "gce": {"type": "gcp", "project": "p", "region": "europe-west4", "image": "i", "subnetwork": "s"},
        "az": {
            "type": "azure", "subscription": "s", "resource_group": "rg", "region": "westeurope", "image": "/subscriptions/s/images/i",
            "subnet": "/subscriptions/s/subnets/n", "ssh_public_key": "ssh-ed25519 AAAA",
        },
    },
    "nodesets": [
        {
            "name": "gpu", "nodes": "gpu-[1-4]", "cpus": 1, "memory_mb": 100, "gpus": {"type": "l4", "count": 1, "files": ["/dev/nvidia0"]},
            "offerings": [
                {"provider": "az", "instance_type": "Standard_NC4", "zone": "1"},
                {"provider": "ec2", "instance_type": "g6.xlarge", "zone": "any"},
                {"provider": "gce", "instance_type": "g2-standard-4", "zone": "any"},
            ],
        }
    ],
    "partitions": [{"name": "gpu", "nodesets": ["gpu"], "default": True}],
}  # fmt: skip
# What the machine has no GPU, no controller and no cloud for is not asked of it.
SLURM_CONF = """\
ClusterName=lab
SlurmctldHost=controller(127.0.0.1)
SlurmUser=root
ProctrackType=proctrack/linuxproc
JobAcctGatherType=jobacct_gather/none
NodeName=gpu-[1-4] CPUs=1 RealMemory=100 State=CLOUD
PartitionName=gpu Nodes=gpu-[1-4]
"""
REPORT = """
cp -r /var/lib/cloud/data /var/log/cloud-init-output.log /shared/ || true
for file in /shared/made/image/*.yaml /shared/made/boot/*.yaml; do
    cloud-init schema --config-file "$file" >"/shared/schema-$(echo "$file" | tr / _)" 2>&1
done
systemd-analyze verify --man=no spotburst-agent.service slurmd.service >/shared/verify 2>&1
systemctl show -p ActiveState,ActiveEnterTimestampMonotonic spotburst-agent.service >/shared/agent
systemctl show -p ActiveState,ActiveEnterTimestampMonotonic slurmd.service >/shared/slurmd
hostname >/shared/hostname
systemctl --no-block poweroff
"""


def take_on(root: Path, recipe: str) -> None:
    """The recipe's files in an image, and of its packages' programs spotburst's: the node's part, which needs nothing else."""
    for file in yaml.safe_load(recipe)["write_files"]:
        path = root / file["path"].lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.decompress(base64.b64decode(file["content"])))
        path.chmod(int(file["permissions"], 8))
    program = root / "opt/spotburst/bin/spotburst"
    program.parent.mkdir(parents=True)
    shutil.copytree(REPOSITORY / "job_wrapper", root / "opt/spotburst/lib/job_wrapper", ignore=BEING_COMPILED)
    program.write_text(
        "#!/usr/bin/python3\nimport sys\nsys.path.insert(0, '/opt/spotburst/lib')\n"
        "from job_wrapper.agent import main\nsys.exit(main(sys.argv[2:]))\n"
    )
    program.chmod(0o755)


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What was found on a node at its first boot: by the name of a file in /shared, and its journal."""
    folder = tmp_path_factory.mktemp("image")
    shared = folder / "shared"
    shared.mkdir()
    (folder / "burst.yaml").write_text(yaml.safe_dump(BURST))
    config = load_config(folder / "burst.yaml")
    wishes = image.Wishes(
        {"slurm.conf": SLURM_CONF},
        driver="#!/bin/sh\n",
        key_command="head -c 128 /dev/urandom",
    )
    around = Around(
        (22, 5, 8),
        render.Programs.beside_python(Path("/opt/spotburst/bin/python")),
        Path("/etc/slurm/burst.yaml"),
        lambda: wishes,
    )
    made = {one.name: one for one in everything(config, around)}
    for name, one in made.items():
        path = shared / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.text)
    with cloud_init.disk(folder / "disk") as root:
        take_on(root, made["image/az.yaml"].text)
        (shared / "report").write_text(REPORT)
        text = made["boot/az-gpu.yaml"].text + "  - [sh, /shared/report]\n"
        journal = cloud_init.boot(root, "gpu-machine", text, shared)
    yield {path.name: path.read_text(errors="replace") for path in shared.iterdir() if path.is_file()} | {
        "journal": journal
    }


def test_a_node_starts_its_agent_first_and_slurmd_last(booted: dict[str, str]) -> None:
    """slurmd gives up after a while here, where no controller is."""
    assert booted["hostname"] == "gpu-1\n"

    def entered(name: str) -> int:
        told = dict(line.split("=") for line in booted[name].splitlines())
        return int(told["ActiveEnterTimestampMonotonic"])

    assert 0 < entered("agent") < entered("slurmd")
    assert "ActiveState=active" in booted["agent"]
    assert "watching azure for node gpu-1" in booted["journal"]


def test_the_agent_has_munge_to_the_end(booted: dict[str, str]) -> None:
    """It is needed for the requeue of a job at a shutdown."""
    lines = booted["journal"].splitlines()
    agent, munge = (
        next(n for n, line in enumerate(lines) if re.search(rf"systemd\[1\]: Stopped {name}\.service", line))
        for name in ("spotburst-agent", "munge")
    )
    assert agent < munge


def test_what_cloud_init_and_systemd_say_of_the_files(booted: dict[str, str]) -> None:
    schemas = {name: text for name, text in booted.items() if name.startswith("schema-")}
    assert len(schemas) == 5, "three recipes, and the user data of two clouds (Compute Engine's is a script)"
    for name, text in schemas.items():
        assert "Valid cloud-config" in text, f"{name}: {text}"
    assert booted["verify"] == ""


def test_scripts_are_ones_that_a_shell_reads(tmp_path: Path) -> None:
    (tmp_path / "burst.yaml").write_text(yaml.safe_dump(BURST))
    config = load_config(tmp_path / "burst.yaml")
    around = Around(
        (22, 5, 8), render.Programs.beside_python(), Path("/etc/slurm/burst.yaml"), lambda: image.Wishes({})
    )
    script = next(one for one in everything(config, around) if one.name == "boot/gce-gpu.sh").text
    devices = render.from_template("gpu-devices.sh.j2")
    shell = shutil.which("dash") or "/bin/sh"
    for text in (script, devices):
        assert subprocess.run([shell, "-n"], input=text, text=True, check=False).returncode == 0
    # Without such a device there is nothing to wait for.
    assert subprocess.run([shell], input=devices, text=True, check=False, timeout=30).returncode == 0
