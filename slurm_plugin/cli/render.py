"""``spotburst render …``: files that stand around spotburst, made from burst.yaml: on standard output, in a folder, or in their places."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from job_wrapper.errors import UsageError
from slurm_plugin import image, render
from slurm_plugin.cli import output
from slurm_plugin.cli.source import ConfigOption, JsonOption, needed_settings, slurm_client
from slurm_plugin.config import Config, find_config
from slurm_plugin.errors import ConfigError, SlurmRefused, SlurmUnavailable
from slurm_plugin.generated import Around, Generated, everything
from slurm_plugin.place_files import Wanted, Written, differences, write_all

app = typer.Typer(help="Print or write files for Slurm, systemd and clouds.", no_args_is_help=True)

BinDirOption = Annotated[
    Path | None,
    typer.Option(help="Folder of spotburst's programs as the files are to name it; else that of this very spotburst."),
]
UserOption = Annotated[str, typer.Option(help="SlurmUser, as whom the manager runs.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Also over files that spotburst did not write.")]
VersionOption = Annotated[str | None, typer.Option("--slurm-version", help="Such as 24.11.5; else slurmctld is asked.")]


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
    known = needed_settings(config)
    include = known.slurm.conf.parent / "spotburst.conf"
    _show(render.spotburst_conf(known, _version(known, slurm_version), _programs(bin_dir), include))


@app.command()
def gres(config: ConfigOption = None) -> None:
    """gres.conf: the nodes' GPUs."""
    _show(render.gres_conf(needed_settings(config)))


@app.command()
def cgroup(config: ConfigOption = None, slurm_version: VersionOption = None) -> None:
    """cgroup.conf of the nodes."""
    known = needed_settings(config)
    _show(render.cgroup_conf(_version(known, slurm_version), embedded=False))


@app.command("manager-service")
def manager_service(
    config: ConfigOption = None,
    user: UserOption = "slurm",
    bin_dir: BinDirOption = None,
) -> None:
    """The manager's systemd unit, for the controller."""
    known = needed_settings(config)
    _show(render.manager_service(known, _programs(bin_dir), config_path=config or find_config(), user=user))


@app.command("aws-events")
def aws_events(
    provider: Annotated[str, typer.Argument(help="Of type aws, as burst.yaml calls it.")],
    config: ConfigOption = None,
) -> None:
    """A CloudFormation template: the queue in which the manager hears of EC2's interruptions, and what fills it."""
    _show(render.aws_events(needed_settings(config), provider))


@app.command("agent-service")
def agent_service(config: ConfigOption = None, bin_dir: BinDirOption = None) -> None:
    """The node agent's systemd unit, for the nodes' image."""
    _show(render.agent_service(_programs(bin_dir), slurm_conf=needed_settings(config).slurm.conf))


@app.command("image")
def image_recipe(
    provider: Annotated[str, typer.Argument(help="As burst.yaml calls it.")],
    config: ConfigOption = None,
    package: Annotated[
        str, typer.Option(help="What pip is to install: spotburst, a version of it, an address of a wheel.")
    ] = "spotburst",
    driver: Annotated[Path | None, typer.Option(help="A script that installs the GPU's driver.")] = None,
    munge_key_command: Annotated[str, typer.Option(help="A command that prints munge's key, run on the machine.")] = "",
) -> None:
    """User data of the machine that the nodes' image is made of; call it on the controller, whose slurm.conf it takes along."""
    known = needed_settings(config)
    _show(image.recipe(known, provider, _wishes(known, config, package, driver, munge_key_command)))


@app.command("list")
def list_all(
    config: ConfigOption = None,
    slurm_version: VersionOption = None,
    bin_dir: BinDirOption = None,
    user: UserOption = "slurm",
    json: JsonOption = False,
) -> None:
    """What there is, and where it belongs."""
    found = _everything(config, slurm_version, bin_dir, user)
    if json:
        output.as_json([{"name": one.name, "about": one.about, "on": one.on, "place": one.place} for one in found])
    else:
        output.table(("NAME", "ON", "PLACE", "WHAT"), ([one.name, one.on, one.place, one.about] for one in found))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="As `spotburst render list` has it.")],
    config: ConfigOption = None,
    slurm_version: VersionOption = None,
    bin_dir: BinDirOption = None,
    user: UserOption = "slurm",
) -> None:
    """One of them, on standard output."""
    _show(_named(_everything(config, slurm_version, bin_dir, user), [name])[0].text)


@app.command("all")
def write_folder(
    folder: Annotated[Path | None, typer.Argument(help="Where they are written.", show_default=False)] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Write nothing: show how what is in FOLDER, or installed here, differs.")
    ] = False,
    force: ForceOption = False,
    config: ConfigOption = None,
    slurm_version: VersionOption = None,
    bin_dir: BinDirOption = None,
    user: UserOption = "slurm",
) -> None:
    """All of them, in FOLDER by their names. With --diff it ends with 1 where something differs.

    Without FOLDER --diff looks at what is installed on this machine, and passes over what is not.
    """
    if folder is None and not diff:
        raise UsageError("render all: name a folder to write to, or ask with --diff how what is installed differs")
    found = _everything(config, slurm_version, bin_dir, user)
    if folder is None:
        wanted = [Wanted(one.place, one.text, one.mode) for one in found if one.place and one.place.exists()]
    else:
        wanted = [Wanted(folder / _file_name(one), one.text, one.mode) for one in found]
    if diff:
        texts = differences(wanted)
        print("".join(texts), end="")
        if texts:
            raise typer.Exit(1)
        return
    assert folder is not None  # noqa: S101 - told above
    folder.mkdir(parents=True, exist_ok=True)
    _tell(write_all(wanted, force=force, record=folder))


@app.command()
def install(
    names: Annotated[list[str], typer.Argument(help="As `spotburst render list` has them; only those with a place.")],
    force: ForceOption = False,
    config: ConfigOption = None,
    slurm_version: VersionOption = None,
    bin_dir: BinDirOption = None,
    user: UserOption = "slurm",
) -> None:
    """Write some of them to their places on this machine."""
    chosen = _named(_everything(config, slurm_version, bin_dir, user), names)
    if homeless := [one.name for one in chosen if one.place is None]:
        raise UsageError(
            f"{', '.join(homeless)}: for a cloud, not for a place on this machine; see `spotburst render show`"
        )
    _tell(write_all([Wanted(one.place, one.text, one.mode) for one in chosen if one.place], force=force))


def _everything(config: Path | None, slurm_version: str | None, bin_dir: Path | None, user: str) -> list[Generated]:
    known = needed_settings(config)
    burst_yaml = (config or find_config()).absolute()
    wishes = cache(lambda: image.Wishes(_settings(known, config, needed=False)))
    around = Around(_version(known, slurm_version), _programs(bin_dir), burst_yaml, wishes, user)
    return everything(known, around)


def _named(found: list[Generated], names: list[str]) -> list[Generated]:
    by_name = {one.name: one for one in found}
    if unknown := [name for name in names if name not in by_name]:
        raise UsageError(f"{', '.join(unknown)}: there is none of that name; there are: {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _file_name(one: Generated) -> str:
    """In a folder of all: by machine and place, or by its name where it is for a cloud."""
    return f"{one.on}/{str(one.place).lstrip('/')}" if one.place else one.name


def _wishes(
    known: Config, config: Path | None, package: str, driver: Path | None, munge_key_command: str
) -> image.Wishes:
    try:
        script = driver.read_text(encoding="utf-8") if driver else ""
    except (OSError, ValueError) as error:
        raise UsageError(f"--driver {driver}: can't be read: {error}") from error
    return image.Wishes(_settings(known, config, needed=True), package, script, munge_key_command)


def _settings(known: Config, config: Path | None, *, needed: bool) -> dict[str, str]:
    """What an image takes along of Slurm's settings here. Where one may hold a secret: an error if ``needed``, else said and left out."""
    found: dict[str, str] = {}
    for name in image.SETTINGS:
        path = (config or find_config()) if name == "burst.yaml" else known.slurm.conf.parent / name
        try:
            if path.stat().st_mode & 0o004:
                found[name] = path.read_text(encoding="utf-8")
                continue
            fault = f"{path}: not everybody may read it, so it may hold a secret, which does not belong into user data"
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            fault = f"{path}: can't be read: {error}"
        if needed:
            raise UsageError(f"{fault}: move the secret elsewhere, chmod 0644")
        print(f"spotburst: {fault}: image/… are without it", file=sys.stderr)
    return found


def _tell(written: Written) -> None:
    for word, paths in (("new", written.new), ("changed", written.changed), ("as it was", written.same)):
        for path in paths:
            print(f"{word}: {path}")
    if written.foreign:
        raise ConfigError(
            f"{', '.join(map(str, written.foreign))}: not written by spotburst, so left as it is; --force writes over it"
        )
