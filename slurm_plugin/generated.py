"""Everything that spotburst generates from burst.yaml, by name: what it is, where it belongs, its text, made when it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from slurm_plugin import image, render
from slurm_plugin.cloud.aws.template import shared_user_data
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.config import AwsProvider, AzureProvider, Config, GcpProvider, NodeSet

UNITS = Path("/etc/systemd/system")


@dataclass(frozen=True, slots=True)
class Generated:
    """``make`` makes its text, and raises ``ConfigError`` where that can't be done: one that can't be made stands in no other's way.

    ``place``: where it is installed, None where it is for a cloud (``name`` is then its path in a folder of all); ``on``: which machine's.
    """

    name: str
    about: str
    make: Callable[[], str]
    place: Path | None = None
    on: str = "cloud"
    mode: int = 0o644

    @property
    def text(self) -> str:
        """Made now."""
        return self.make()


@dataclass(frozen=True, slots=True)
class Around:
    """What burst.yaml does not tell: Slurm's version, where spotburst's programs are, burst.yaml's own path, who runs the manager."""

    version: render.Version
    programs: render.Programs
    burst_yaml: Path
    wishes: Callable[[], image.Wishes]
    """Asked only where an image's recipe is made."""
    user: str = "slurm"


def everything(config: Config, around: Around) -> list[Generated]:
    """All of it."""
    folder = config.slurm.conf.parent
    include = folder / "spotburst.conf"
    return [
        Generated(
            "slurm",
            "what slurm.conf includes",
            lambda: render.spotburst_conf(config, around.version, around.programs, include),
            include,
            "controller",
        ),
        Generated(
            "gres",
            "what gres.conf includes: GPUs",
            lambda: render.gres_conf(config),
            folder / "spotburst-gres.conf",
            "controller",
        ),
        Generated(
            "cgroup",
            "cgroup.conf of the nodes",
            lambda: render.cgroup_conf(around.version, embedded=False),
            folder / "cgroup.conf",
            "node",
        ),
        Generated(
            "manager-service",
            "the manager's systemd unit",
            lambda: render.manager_service(config, around.programs, config_path=around.burst_yaml, user=around.user),
            UNITS / "spotburst-manager.service",
            "controller",
        ),
        Generated(
            "agent-service",
            "the node agent's systemd unit",
            lambda: render.agent_service(around.programs, slurm_conf=config.slurm.conf),
            UNITS / "spotburst-agent.service",
            "node",
        ),
        *_clouds(config, around),
    ]


def _clouds(config: Config, around: Around) -> Iterator[Generated]:
    for name, settings in config.providers.items():
        if not isinstance(settings, AwsProvider | GcpProvider | AzureProvider):
            continue
        yield Generated(
            f"image/{name}.yaml",
            "user data of the machine that the image is made of",
            partial(_image, config, name, around),
        )
        for nodeset in config.nodesets:
            offering = next((o for o in config.offerings_of(nodeset) if o.provider == name), None)
            if offering is not None:
                ending = "sh" if settings.type == "gcp" else "yaml"
                yield Generated(
                    f"boot/{name}-{nodeset.name}.{ending}",
                    "what a node of it is started with",
                    partial(_boot, config, settings, nodeset, offering),
                )
        if isinstance(settings, AwsProvider):
            yield Generated(
                f"events/{name}.yaml",
                "CloudFormation: the queue of EC2's interruptions",
                partial(render.aws_events, config, name),
            )
        for file in sorted(policies().glob(f"{settings.type}-*")):
            yield Generated(
                f"policies/{name}-{file.name.partition('-')[2]}",
                "rights of the manager" if "manager" in file.name else "rights of the nodes",
                partial(_filled, file, config, name),
            )


def _image(config: Config, provider: str, around: Around) -> str:
    return image.recipe(config, provider, around.wishes())


def policies() -> Path:
    """The folder of the clouds' policies, of the repository or of an installed wheel."""
    inside = render.template_folder() / "policies"
    return inside if inside.is_dir() else render.template_folder().parent / "ansible/policies"


def _filled(file: Path, config: Config, provider: str) -> str:
    """The policy with what burst.yaml knows; other words in capitals are left for a person."""
    settings, text = config.providers[provider], file.read_text(encoding="utf-8")
    store = urlsplit(config.checkpoints.uri)
    known = {
        "CLUSTER": config.cluster,
        "REGION": getattr(settings, "region", ""),
        "PROJECT": getattr(settings, "project", ""),
        "SUBSCRIPTION": getattr(settings, "subscription", ""),
        "BUCKET": store.netloc if store.scheme == "s3" else "",
        "PREFIX": store.path.strip("/") if store.scheme == "s3" else "",
    }
    for word, value in known.items():
        if value:
            text = re.sub(rf"\b{word}\b", lambda _, value=value: value, text)  # type: ignore[misc]
    return (
        text.replace("BUCKET//*", "BUCKET/*").replace("/PREFIX/*", "/*")
        if store.scheme == "s3" and not store.path.strip("/")
        else text
    )


def _boot(
    config: Config, settings: AwsProvider | GcpProvider | AzureProvider, nodeset: NodeSet, offering: Offering
) -> str:
    """What a machine of the nodeset is started with there; its own name, offering and rate stand for those of any."""
    node = render.node_config(config, nodeset, nodeset.node_names[0], offering)
    programs = replace(render.Programs.beside_python(), spotburst=settings.node_program)
    agent = render.agent_service(programs, slurm_conf=config.slurm.conf)
    if isinstance(settings, AwsProvider):
        return shared_user_data(asdict(node), agent)
    if isinstance(settings, GcpProvider):
        return render.gcp_startup({k: v for k, v in json.loads(node.to_json()).items() if k != "node"}, agent)
    return render.cloud_init(node.node, node, agent)
