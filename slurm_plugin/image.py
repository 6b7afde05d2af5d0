"""The recipe of the nodes' image: user data for a machine that makes itself one the image can be taken from. Text in, text out."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin import render
from slurm_plugin.config import AwsProvider, AzureProvider, Config, GcpProvider
from slurm_plugin.errors import ConfigError

PACKAGES = ("munge", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "python3-venv", "ca-certificates")
SETTINGS = ("slurm.conf", "spotburst.conf", "gres.conf", "spotburst-gres.conf", "cgroup.conf", "burst.yaml")
"""What a node has of the folder where slurm.conf is."""
LIBRARY = Path("/usr/local/lib/spotburst")
LARGEST = {"aws": 16384, "gcp": 262144, "azure": 65535}
"""Bytes of user data that a cloud takes (EC2, Compute Engine's metadata value, Azure's custom data before base64)."""
_CAPTURE = {
    "aws": ("aws ec2 create-image --instance-id ID --name NAME", "and its id is `image` in burst.yaml."),
    "gcp": (
        "gcloud compute images create NAME --source-disk DISK --source-disk-zone ZONE",
        "and projects/PROJECT/global/images/NAME is `image` in burst.yaml. Begin with an image that has cloud-init, such as Ubuntu's.",
    ),
    "azure": (
        "az vm deallocate …; az vm generalize …; az image create --resource-group GROUP --name NAME --source VM",
        "and its id is `image` in burst.yaml.",
    ),
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What burst.yaml does not tell. ``settings``: text by name of ``SETTINGS``, as the controller has them.

    ``package``: what pip installs. ``driver``: a script that installs the GPU's driver, "" for none. ``key_command``: a shell command that
    prints munge's key, with the rights of the machine on which it runs (a secret store's client); "" where the key comes another way.
    """

    settings: Mapping[str, str]
    package: str = "spotburst"
    driver: str = ""
    key_command: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    mode: str
    text: str

    @property
    def content(self) -> str:
        # No time of day in it: the same settings give the same recipe.
        return base64.b64encode(gzip.compress(self.text.encode(), mtime=0)).decode()


def recipe(config: Config, provider: str, wishes: Wishes) -> str:
    """A cloud-config for the machine. Raises ``ConfigError`` for a provider that has no images, and for more than its cloud takes."""
    settings = config.providers.get(provider)
    if not isinstance(settings, AwsProvider | GcpProvider | AzureProvider):
        found = ", ".join(n for n, p in config.providers.items() if p.type in LARGEST) or "none"
        raise ConfigError(f"providers: {provider!r} is none whose machines are made from an image; there are: {found}")
    program = settings.node_program
    programs = render.Programs.beside_python(program.parent / "python")
    gpus = any(n.gpus for n in config.nodesets if any(o.provider == provider for o in n.offerings))
    folder = config.slurm.conf.parent
    values = {
        "key_command": wishes.key_command,
        "driver": wishes.driver,
        "environment": program.parent.parent / "environment",
        "bin_dir": program.parent,
        "package": wishes.package,
    }
    files = [
        *(_File(folder / name, "0644", text) for name, text in wishes.settings.items()),
        _File(
            Path("/etc/systemd/system/spotburst-agent.service"),
            "0644",
            render.agent_service(programs, slurm_conf=config.slurm.conf),
        ),
        _File(
            Path("/etc/systemd/system/slurmd.service.d/spotburst.conf"),
            "0644",
            render.from_template("slurmd-spotburst.conf.j2", gpus=gpus),
        ),
        _File(LIBRARY / "make-image", "0755", render.from_template("make-image.sh.j2", **values)),
    ]
    if gpus:
        files.append(_File(LIBRARY / "gpu-devices", "0755", render.from_template("gpu-devices.sh.j2")))
    if wishes.driver:
        files.append(_File(LIBRARY / "driver", "0755", wishes.driver))
    text = render.from_template(
        "image-cloud-init.yaml.j2",
        cluster=config.cluster,
        provider=provider,
        capture=_CAPTURE[settings.type],
        packages=list(PACKAGES),
        files=files,
        key_command=wishes.key_command,
    )
    if len(text.encode()) > LARGEST[settings.type]:
        raise ConfigError(
            f"the recipe for {provider} is {len(text.encode())} bytes, and its cloud takes {LARGEST[settings.type]}: leave the driver's script to an "
            "address that a short one fetches, or make the image with ansible (docs/ansible.md)"
        )
    return text
