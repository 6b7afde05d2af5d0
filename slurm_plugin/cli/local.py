"""``spotburst local``: a private cluster on this host, and the levers to play the cloud's part in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
import yaml

from job_wrapper.counted import counted
from slurm_plugin.cli import completion, output
from slurm_plugin.cli.source import JsonOption
from slurm_plugin.cloud.local.cloud import LocalCloud, from_config
from slurm_plugin.cloud.provider import Instance, Market
from slurm_plugin.config import Config, find_config, load_config, parse_duration
from slurm_plugin.errors import ConfigError, LocalCloudError
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.local_cluster.sweep import clusters

app = typer.Typer(
    name="local", help="A private cluster on this host: try spotburst without a cloud.", no_args_is_help=True
)

DEFAULT_FOLDER = Path("/var/lib/spotburst-local")

Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of the cluster.", show_default=True)]
Target = Annotated[
    str, typer.Argument(metavar="NODE", help="Node name or instance id.", autocompletion=completion.nodes)
]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config", help="burst.yaml of the cluster; else that of SLURM_CONF, else that of the default folder."
    ),
]
Provider = Annotated[
    str | None, typer.Option("--provider", help="Needed only where burst.yaml has several local ones.")
]


@app.command()
def up(
    folder: Folder = DEFAULT_FOLDER,
    nodes: Annotated[int, typer.Option(min=1, help="Spot nodes.")] = 4,
    ondemand: Annotated[int, typer.Option(min=0, help="On-demand nodes.")] = 1,
    gpus: Annotated[
        int, typer.Option(min=0, max=16, help="GPUs of each node (stand-ins: CUDA_VISIBLE_DEVICES is set).")
    ] = 1,
    speaks: Annotated[str, typer.Option(help="Whose metadata service the nodes have: aws, gcp or azure.")] = "aws",
    settings: Annotated[Path | None, typer.Option(help="A burst.yaml to start from, instead of these options.")] = None,
    manager: Annotated[bool, typer.Option(help="Run spotburst's manager.")] = True,
) -> None:
    """Start a cluster in DIR: slurmctld, and nodes that boot when a job needs them. Needs root."""
    if settings is not None:
        try:
            wanted = yaml.safe_load(settings.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{settings}: can't be read: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{settings}: is not YAML: {error}") from error
        if not isinstance(wanted, dict):
            raise ConfigError(f"{settings}: must hold keys and values (cluster:, providers:, …)")
    else:
        wanted = default_settings(nodes, ondemand=ondemand, gpus=gpus, speaks=speaks, grace_time=30)
    cluster = LocalCluster(folder, wanted, manager=manager)
    cluster.start()
    names = ", ".join(counted(len(n.node_names), f"{n.name} node") for n in cluster.config.nodesets)
    output.console().print(f"A cluster runs in {cluster.root!s}: {names}, powered down until a job needs them.\n")
    if cluster.first_job_id > 1:
        output.console().print(
            f"The folder is an earlier cluster's, with its jobs' checkpoints: the first job's number is {cluster.first_job_id}.\n"
        )
    output.console().print("In your shell:")
    output.console().print(f"  export SLURM_CONF={cluster.slurm_conf!s}")
    output.console().print(f"  export PATH={cluster.environment['PATH'].split(os.pathsep)[0]}:$PATH\n")
    output.console().print("Then, for example:  sbatch --gres=gpu:1 --wrap 'srun hostname; sleep 600'   sinfo   squeue")
    output.console().print(
        "Play the cloud:     spotburst local reclaim spot-1    (or vanish, cut, heal, withdraw, capacity)"
    )
    output.console().print(f"Stop:               spotburst local down {cluster.root!s}")


@app.command()
def down(
    folder: Folder = DEFAULT_FOLDER,
    everything: Annotated[
        bool, typer.Option("--all", help="Every private cluster on this host, whatever its folder.")
    ] = False,
) -> None:
    """Stop a cluster and remove all that it started; also what a killed one left. Logs and checkpoints stay."""
    if os.geteuid() != 0:
        raise LocalCloudError("stopping a local cluster needs root, as starting it did. Use sudo.")
    found = clusters() if everything else [LocalCluster(folder)]
    for cluster in found:
        cluster.stop()
        output.console().print(f"Nothing runs in {cluster.root!s} any more.")
    if not found:
        output.console().print("No private cluster is left on this host.")


@app.command()
def status(config: ConfigPath = None, provider: Provider = None, json: JsonOption = False) -> None:
    """Machines of the local cloud, limits and refusals to come."""
    cloud = _cloud(config, provider)
    now, machines, faults = time.time(), cloud.instances(), cloud.faults()
    if json:
        limits, refusals = faults.get("limits", {}), faults.get("refusals", [])
        output.as_json({"machines": list(machines), "limits": limits, "refusals": refusals})
        return
    output.table(
        ("NODE", "INSTANCE", "STATE", "OFFERING", "ADDRESS", "AGE", "ENDS IN"),
        (
            [
                one.node,
                one.instance_id,
                one.state.value,
                one.offering_id,
                one.address,
                output.duration(now - one.launched),
                output.duration(max(0.0, one.deadline - now)) if one.deadline is not None and one.billed else None,
            ]
            for one in machines
        ),
    )
    for pool, limit in sorted(faults.get("limits", {}).items()):
        output.console().print(f"capacity of {pool}: {limit}")
    for refusal in faults.get("refusals", []):
        times = "every launch" if refusal["times"] < 0 else f"the next {refusal['times']}"
        output.console().print(f"to be refused with {refusal['code']}: {times} {refusal['pool'] or 'of any pool'}")


@app.command()
def reclaim(
    node: Target,
    notice: Annotated[str | None, typer.Option(help="Warning, such as 30s; else what burst.yaml says.")] = None,
    config: ConfigPath = None,
    provider: Provider = None,
) -> None:
    """Take a node back, with notice: its metadata service tells, and it ends when the time is up."""
    try:
        seconds = None if notice is None else float(parse_duration(notice))
    except ValueError as error:
        raise ConfigError(f"--notice: {error}") from None
    instance = _cloud(config, provider).reclaim(node, seconds)
    assert instance.deadline is not None  # noqa: S101 - reclaim sets it
    output.console().print(
        f"{_name(instance)} ends in {instance.deadline - time.time():.0f} s (notice {instance.notice_id})"
    )


@app.command()
def withdraw(node: Target, config: ConfigPath = None, provider: Provider = None) -> None:
    """Take a reclaim notice back: the node stays."""
    output.console().print(f"{_name(_cloud(config, provider).withdraw(node))} stays")


@app.command()
def vanish(node: Target, config: ConfigPath = None, provider: Provider = None) -> None:
    """End a node at once, without a notice."""
    output.console().print(f"{_name(_cloud(config, provider).vanish(node))} is gone")


@app.command()
def cut(node: Target, config: ConfigPath = None, provider: Provider = None) -> None:
    """Cut a node off the network; its processes go on."""
    output.console().print(f"{_name(_cloud(config, provider).cut(node))} is off the network")


@app.command()
def heal(node: Target, config: ConfigPath = None, provider: Provider = None) -> None:
    """Put a node back on the network."""
    output.console().print(f"{_name(_cloud(config, provider).heal(node))} is on the network")


@app.command()
def capacity(
    instance_type: Annotated[str, typer.Argument(help="As burst.yaml has it.")],
    limit: Annotated[str, typer.Argument(help="Machines at once, or 'none' for any number.")],
    zone: Annotated[str | None, typer.Option(help="Only in this zone.")] = None,
    market: Annotated[Market | None, typer.Option(help="Only where bought this way.")] = None,
    config: ConfigPath = None,
    provider: Provider = None,
) -> None:
    """Let the cloud run out of something: at most LIMIT machines of a type, in each zone and market."""
    if limit != "none" and not limit.isdecimal():
        raise ConfigError(f"limit {limit!r} is neither a number nor 'none'")
    settings, cloud = _open(config, provider)
    pools = {
        (o.zone, o.instance_type, o.market)
        for nodeset in settings.nodesets
        for o in nodeset.offerings
        if o.provider == cloud.name
    }
    chosen = sorted(p for p in pools if p[1] == instance_type and zone in (None, p[0]) and market in (None, p[2]))
    if not chosen:
        known = ", ".join(f"{t} in {z} ({m.value})" for z, t, m in sorted(pools))
        raise ConfigError(f"no offering of {cloud.name!r} in burst.yaml is that; there are: {known or 'none'}")
    for pool in chosen:
        cloud.set_capacity(*pool, None if limit == "none" else int(limit))
        output.console().print(
            f"{pool[1]} in {pool[0]} ({pool[2].value}): {'any number' if limit == 'none' else limit}"
        )


def _cloud(config: Path | None, provider: str | None) -> LocalCloud:
    return _open(config, provider)[1]


def _open(config: Path | None, provider: str | None) -> tuple[Config, LocalCloud]:
    if os.geteuid() != 0:
        raise LocalCloudError("the local cloud's machines are root's: use sudo (and keep SLURM_CONF: sudo -E)")
    if config is None:
        try:
            config = find_config()
        except ConfigError:
            config = DEFAULT_FOLDER / "etc" / "burst.yaml"
            if not config.is_file():
                raise LocalCloudError(
                    "no local cluster found: export SLURM_CONF as 'spotburst local up' showed, or name burst.yaml with --config"
                ) from None
    settings = load_config(config)
    return settings, from_config(settings, provider)


def _name(instance: Instance) -> str:
    return f"{instance.node} ({instance.instance_id})"
