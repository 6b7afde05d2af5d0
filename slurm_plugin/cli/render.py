"""``spotburst render …``: files that stand around spotburst, made from burst.yaml, on standard output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from job_wrapper.errors import UsageError
from slurm_plugin import render
from slurm_plugin.cli.source import ConfigOption, settings, slurm_client
from slurm_plugin.config import Config, find_config
from slurm_plugin.errors import ConfigError, SlurmRefused, SlurmUnavailable

app = typer.Typer(help="Print files for Slurm, systemd and clouds.", no_args_is_help=True)

BinDirOption = Annotated[
    Path | None,
    typer.Option(help="Folder of spotburst's programs as the files are to name it; else that of this very spotburst."),
]
VersionOption = Annotated[str | None, typer.Option("--slurm-version", help="Such as 24.11.5; else slurmctld is asked.")]


def _known(path: Path | None) -> Config:
    known = settings(path, needed=True)
    assert known is not None  # noqa: S101 - needed
    return known


def _version(known: Config, given: str | None) -> render.Version:
    if given:
        return render.parse_version(given)
    try:
        return slurm_client(known).version()
    except (SlurmUnavailable, SlurmRefused, ConfigError) as error:
        raise UsageError(f"Slurm's version is not known: give --slurm-version, such as 24.11.5 ({error})") from error


def _programs(bin_dir: Path | None) -> render.Programs:
    return render.Programs.beside_python(bin_dir / "python" if bin_dir else None)


def _show(text: str) -> None:
    print(text, end="" if text.endswith("\n") else "\n")


@app.command()
def slurm(config: ConfigOption = None, slurm_version: VersionOption = None, bin_dir: BinDirOption = None) -> None:
    """What slurm.conf needs: put it beside slurm.conf as spotburst.conf, and `include spotburst.conf` there."""
    known = _known(config)
    include = known.slurm.conf.parent / "spotburst.conf"
    _show(render.spotburst_conf(known, _version(known, slurm_version), _programs(bin_dir), include))


@app.command()
def gres(config: ConfigOption = None) -> None:
    """gres.conf: the nodes' GPUs."""
    _show(render.gres_conf(_known(config)))


@app.command()
def cgroup(config: ConfigOption = None, slurm_version: VersionOption = None) -> None:
    """cgroup.conf of the nodes."""
    known = _known(config)
    _show(render.cgroup_conf(_version(known, slurm_version), embedded=False))


@app.command("manager-service")
def manager_service(
    config: ConfigOption = None,
    user: Annotated[str, typer.Option(help="SlurmUser.")] = "slurm",
    bin_dir: BinDirOption = None,
) -> None:
    """The manager's systemd unit, for the controller."""
    known = _known(config)
    _show(render.manager_service(known, _programs(bin_dir), config_path=config or find_config(), user=user))


@app.command("aws-events")
def aws_events(
    provider: Annotated[str, typer.Argument(help="Of type aws, as burst.yaml calls it.")],
    config: ConfigOption = None,
) -> None:
    """A CloudFormation template: the queue in which the manager hears of EC2's interruptions, and what fills it."""
    _show(render.aws_events(_known(config), provider))


@app.command("agent-service")
def agent_service(config: ConfigOption = None, bin_dir: BinDirOption = None) -> None:
    """The node agent's systemd unit, for the nodes' image."""
    _show(render.agent_service(_programs(bin_dir), slurm_conf=_known(config).slurm.conf))
