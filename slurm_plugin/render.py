"""The files that stand around spotburst, made from burst.yaml by the templates in ``templates/``: text in, text out, no acting.

What differs between Slurm's versions is decided here and nowhere else; each branch names the version that brought the change.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from job_wrapper.node_config import NodeConfig
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.config import AwsProvider, Config, NodeSet
from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import fold

Version = tuple[int, int, int]
OLDEST: Version = (22, 5, 0)
MARK = "Made by spotburst"
"""In the first lines of each rendered file that can have a comment: what bears it may be written over."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Absolute paths of the programs that slurm.conf and systemd name."""

    resume: Path
    suspend: Path
    resume_fail: Path
    spotburst: Path

    @classmethod
    def beside_python(cls, python: Path | None = None) -> Programs:
        """The console scripts of the environment that this Python belongs to."""
        folder = (python or Path(sys.executable)).parent
        return cls(
            resume=folder / "spotburst-resume",
            suspend=folder / "spotburst-suspend",
            resume_fail=folder / "spotburst-resume-fail",
            spotburst=folder / "spotburst",
        )


@dataclass(frozen=True, slots=True)
class Site:
    """What a whole slurm.conf needs beside burst.yaml: where slurmctld lives and how it behaves. Times in seconds."""

    control_host: str
    control_address: str
    state_save: Path
    log_dir: Path
    run_dir: Path
    control_port: int = 6817
    node_port: int = 6818
    munge_socket: Path | None = None
    cred_expire: int | None = None
    """None: Slurm's own 120 s."""
    slurm_user: str = "root"
    node_spool: str = "/run/slurmd"
    proctrack: str = "proctrack/linuxproc"
    slurmd_timeout: int = 300
    """Large: the manager notices a silent node sooner by itself."""
    min_job_age: int = 300
    kill_wait: int = 5
    power_save_interval: int = 1
    first_job_id: int = 1
    debug: str = "info"
    debug_flags: tuple[str, ...] = field(default=())
    more: tuple[str, ...] = ()
    """Lines after all others. Of a word that stands twice Slurm takes the last."""


def parse_version(text: str) -> Version:
    """``slurm-wlm 22.05.8`` or ``slurm 24.11.5-rc1`` to a triple. Raises ``ConfigError``."""
    match = re.search(r"\b(\d{2})\.(\d{1,2})(?:\.(\d{1,9}))?", text)
    if not match:
        raise ConfigError(
            f"{text.strip()!r} is not the answer of a Slurm that we know: expected such as 'slurm 24.11.5'"
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


def template_folder() -> Path:
    """``templates/`` of the repository, or the copy inside an installed wheel. Raises ``ConfigError``."""
    here = Path(__file__).resolve().parent
    for place in (here / "templates", here.parent / "templates"):
        if (place / "slurm.conf.j2").is_file():
            return place
    raise ConfigError(
        f"the templates are missing: looked in {here}/templates and {here.parent}/templates; install spotburst again"
    )


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folder()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - configuration files, not HTML; values are validated by Config
    )
    environment.filters["quote"] = shlex.quote
    return environment


def from_template(template: str, **values: Any) -> str:
    """One of ``templates/`` with ``values``; a value that is missing is an error."""
    return _environment().get_template(template).render(**values)


def slurm_conf(config: Config, site: Site, version: Version, programs: Programs) -> str:
    """A whole slurm.conf, for the embedded cluster."""
    auth_info = []
    if site.munge_socket is not None:
        auth_info.append(f"socket={site.munge_socket}")
    if site.cred_expire is not None:
        auth_info.append(f"cred_expire={site.cred_expire}")
    return from_template(
        "slurm.conf.j2",
        cluster=config.cluster,
        site=site,
        auth_info=auth_info,
        **_common(config, version, programs, power_save_interval=site.power_save_interval),
    )


def spotburst_conf(config: Config, version: Version, programs: Programs, include_path: Path) -> str:
    """What an existing slurm.conf includes. ``include_path`` is where the file will stand (it names itself)."""
    return from_template(
        "spotburst.conf.j2", include_path=include_path, **_common(config, version, programs, power_save_interval=None)
    )


def _common(config: Config, version: Version, programs: Programs, *, power_save_interval: int | None) -> dict[str, Any]:
    if version < OLDEST:
        raise ConfigError(f"Slurm {'.'.join(map(str, version))} is too old: spotburst needs 22.05 or later")
    slurmctld = ["idle_on_node_suspend"]
    if version < (23, 11, 0):  # 23.11 made it the only behaviour and removed the word (Bug 17176)
        slurmctld.append("cloud_reg_addrs")
    if power_save_interval is not None:
        slurmctld.append(f"power_save_interval={power_save_interval}")
    # A job that is told to begin waits for the scheduler's next turn, up to batch_sched_delay (3 s by itself) after the last one.
    own = ["bf_interval=5", "sched_interval=5", "batch_sched_delay=1"]
    scheduler = own if power_save_interval is not None else []
    preempt: list[str] = []
    if version < (23, 2, 0):  # 22.05 has no PreemptParameters
        slurmctld.append("preempt_send_user_signal")
        scheduler.append("preempt_youngest_first")
    else:
        preempt = ["send_user_signal", "youngest_first"]
    if version >= (25, 11, 0):  # before, the delay of a requeue is cred_expire (120 s) and can't be set by itself
        scheduler.append("requeue_delay=1")
    nodes_of = {n.name: n for n in config.nodesets}
    return {
        "version": version,
        "programs": programs,
        "power": config.power,
        "slurmctld_parameters": slurmctld,
        "scheduler_parameters": scheduler,
        "preempt_parameters": preempt,
        "gres_types": ["gpu"] if any(n.gpus for n in config.nodesets) else [],
        "nodesets": [
            {
                "nodes": nodeset.nodes,
                "cpus": nodeset.cpus,
                "memory_mb": nodeset.memory_mb,
                "gres": _gres(nodeset),
                "features": (nodeset.name, *(f for f in nodeset.features if f != nodeset.name)),
                # Slurm takes the lowest weight first: nodesets in the order in which burst.yaml has them.
                "weight": 10 * (index + 1),
                "comment": f"nodeset {nodeset.name}: " + ", ".join(o.id for o in config.offerings_of(nodeset)),
            }
            for index, nodeset in enumerate(config.nodesets)
        ],
        "partitions": [
            {
                "name": partition.name,
                "nodes": fold(node for name in partition.nodesets for node in nodes_of[name].node_names),
                "default": partition.default,
                "priority_tier": partition.priority_tier,
                "preempt_mode": partition.preempt_mode,
                "grace_time": partition.grace_time,
                "max_time": partition.max_time,
            }
            for partition in config.partitions
        ],
    }


def gres_conf(config: Config) -> str:
    """One line a GPU: Slurm needs a ``File`` for each (a count without one makes the node INVAL)."""
    return from_template(
        "gres.conf.j2",
        lines=[
            {"nodes": nodeset.nodes, "type": _gpu_type(nodeset), "file": file}
            for nodeset in config.nodesets
            if nodeset.gpus
            for file in nodeset.gpus.files
        ],
    )


def cgroup_conf(version: Version, *, embedded: bool, cgroup_v1: bool = True) -> str:
    """cgroup.conf. The embedded cluster uses no cgroup, but slurmd loads a plugin all the same before 24.05."""
    if not embedded:
        plugin = "autodetect"
    elif version >= (24, 5, 0):
        plugin = "disabled"
    else:
        plugin = "cgroup/v1" if cgroup_v1 else "cgroup/v2"
    return from_template(
        "cgroup.conf.j2",
        plugin=plugin,
        # The word came with 23.11.
        signal_children=not embedded and version >= (23, 11, 0),
    )


def manager_service(
    config: Config, programs: Programs, *, config_path: Path, slurm_conf: Path | None = None, user: str = "slurm"
) -> str:
    """The manager's systemd unit."""
    parent, name = config.state_dir.parent, config.state_dir.name
    return from_template(
        "spotburst-manager.service.j2",
        cluster=config.cluster,
        user=user,
        slurm_conf=slurm_conf or config.slurm.conf,
        program=programs.spotburst,
        config_path=config_path,
        state_directory=name if parent == Path("/var/lib") else "",
    )


def agent_service(programs: Programs, *, slurm_conf: Path) -> str:
    """The node agent's systemd unit."""
    return from_template("spotburst-agent.service.j2", program=programs.spotburst, slurm_conf=slurm_conf)


def cloud_init(node: str, node_config: NodeConfig, agent_unit: str) -> str:
    """User data of a machine: its name, node.json, the agent, and slurmd started last."""
    return from_template(
        "cloud-init.yaml.j2",
        node=node,
        node_json_base64=_base64(node_config.to_json()),
        agent_unit_base64=_base64(agent_unit),
    )


def shared_cloud_init(node_json: str, agent_unit: str) -> str:
    """User data for all machines of a nodeset: each learns its name from its own tags (``name-node.py``).

    ``node_json``: node.json without what belongs to one node.
    """
    return from_template(
        "cloud-init-shared.yaml.j2",
        node_json_base64=_base64(node_json),
        name_node_base64=_base64((template_folder() / "name-node.py").read_text(encoding="utf-8")),
        agent_unit_base64=_base64(agent_unit),
    )


def gcp_startup(node_config: Mapping[str, Any], agent_unit: str) -> str:
    """Start-up script of machines that are made together on Compute Engine: each fills in its own name for the node's."""
    text = json.dumps({**node_config, "node": "@NODE@"}, sort_keys=True)
    return from_template("gcp-startup.sh.j2", node_json_base64=_base64(text), agent_unit_base64=_base64(agent_unit))


def aws_events(config: Config, provider: str) -> str:
    """CloudFormation's template of the queue that ``events_queue`` names, and of what fills it. Raises ``ConfigError``."""
    from slurm_plugin.cloud.aws import events

    settings = config.providers.get(provider)
    if not isinstance(settings, AwsProvider):
        found = ", ".join(n for n, p in config.providers.items() if isinstance(p, AwsProvider)) or "none"
        raise ConfigError(f"providers: no {provider!r} of type aws; there are: {found}")
    # SQS takes 80 characters.
    name = f"spotburst-{config.cluster}-{provider}"[:80]
    return from_template(
        "aws-events.yaml.j2",
        cluster=config.cluster,
        provider=provider,
        region=settings.region,
        name=name,
        # Names of stacks have no underscore.
        stack=name.replace("_", "-"),
        warnings=(events.SPOT_WARNING, events.RESERVATION_WARNING, events.REBALANCE),
        state_change=events.STATE_CHANGE,
        ending=events.ENDING,
        health=events.HEALTH,
    )


def node_config(
    config: Config,
    nodeset: NodeSet,
    node: str,
    offering: Offering,
    *,
    speaks: str | None = None,
    slurm_bin: Path | None = None,
    rate: float = 0.0,
) -> NodeConfig:
    """What the node finds as node.json. ``speaks``: whose metadata service answers there, where it is not the provider's own; ``rate``:
    interruptions a machine hour of the offering, 0 where they are not known."""
    provider = config.providers[offering.provider]
    return NodeConfig(
        cluster=config.cluster,
        node=node,
        nodeset=nodeset.name,
        offering=offering.id,
        provider=speaks or str(getattr(provider, "speaks", provider.type)),
        uri=config.checkpoints.uri,
        endpoint_url=config.checkpoints.endpoint_url or "",
        interval=config.checkpoints.interval,
        interruption_rate=rate,
        keep=config.checkpoints.keep,
        max_attempts=config.recovery.max_attempts,
        max_attempts_multi_node=config.recovery.max_attempts_multi_node,
        barren_attempts=config.recovery.barren_attempts,
        slurm_bin=str(slurm_bin or config.slurm.bin_dir or ""),
    )


def _gpu_type(nodeset: NodeSet) -> str:
    """ "" where burst.yaml names no type (the settings model then says ``gpu``)."""
    return nodeset.gpus.type if nodeset.gpus and nodeset.gpus.type != "gpu" else ""


def _gres(nodeset: NodeSet) -> str:
    if not nodeset.gpus:
        return ""
    return ":".join(filter(None, ["gpu", _gpu_type(nodeset), str(nodeset.gpus.count)]))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
