"""``spotburst check``: is this cluster set up as spotburst needs it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from job_wrapper.errors import SpotburstError
from job_wrapper.store import open_store
from slurm_plugin.cli import output
from slurm_plugin.cli.instance_types import instance_types
from slurm_plugin.cli.source import ConfigOption, JsonOption
from slurm_plugin.config import Config, find_config, load_config
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.connect import connect
from slurm_plugin.slurm.hostlist import fold

OLDEST = (22, 5, 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    what: str
    good: bool
    detail: str


def command(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Look whether all is set up as it must be.

    burst.yaml, slurm.conf, slurmctld, the manager, the checkpoint store, the size of instance types. Ends with 1 if anything is wrong.
    """
    found = list(findings(config))
    if json:
        output.as_json([asdict(one) for one in found])
    else:
        output.table(("", "CHECK", "FOUND"), (["ok" if one.good else "FAIL", one.what, one.detail] for one in found))
    if not all(one.good for one in found):
        raise typer.Exit(1)


def findings(path: Path | None) -> Iterator[Finding]:
    """Each check in turn; what an earlier failure makes impossible is left out."""
    known: list[Config] = []

    def load() -> str:
        place = path or find_config()
        known.append(load_config(place))
        return f"{place}: {len(known[0].nodesets)} nodesets, {len(known[0].partitions)} partitions"

    yield _tried("burst.yaml", load)
    if not known:
        return
    config = known[0]
    yield from _slurm(config)
    yield _tried("state_dir", lambda: _state_dir(config.state_dir))
    yield _tried("manager", lambda: _manager(config.state_dir))
    yield _tried("checkpoint store", lambda: _store(config))
    types = _tried("instance types", lambda: instance_types(config) or "")
    if types.detail:
        yield types


def _tried(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except SpotburstError as error:
        return Finding(what, False, str(error))


def _slurm(config: Config) -> Iterator[Finding]:
    clients: list[CliClient] = []
    running: dict[str, str] = {}

    def answers() -> str:
        client = connect(config.slurm)
        version = client.version()
        if version < OLDEST:
            raise SpotburstError(f"Slurm {'.'.join(map(str, version))} is too old: 22.05 or later is needed")
        clients.append(client)
        running.update(client.config())
        return f"Slurm {version[0]}.{version[1]:02}.{version[2]}, {config.slurm.conf}"

    yield _tried("slurmctld", answers)
    if not clients:
        return
    yield _tried("slurm.conf", lambda: _conf(config, running))
    yield _tried("nodes", lambda: _nodes(config, clients[0]))


def _conf(config: Config, running: Mapping[str, str]) -> str:
    """What spotburst can't work without; `spotburst render slurm` writes all of it."""
    wrong = []
    if running.get("ClusterName") != config.cluster:
        wrong.append(f"ClusterName is {running.get('ClusterName')!r}, burst.yaml's cluster is {config.cluster!r}")
    for key in ("ResumeProgram", "SuspendProgram", "ResumeFailProgram"):
        program = running.get(key, "")
        if not program:
            wrong.append(f"{key} is not set")
        elif not os.access(program.split()[0], os.X_OK):
            wrong.append(f"{key}: {program} can't be run")
    if running.get("SuspendTime", "").upper() in ("", "-1", "NONE", "INFINITE"):
        wrong.append("SuspendTime is not set, which turns power saving off")
    if running.get("JobRequeue") == "0":
        wrong.append("JobRequeue=0: jobs are not brought back unless submitted with --requeue")
    if running.get("SLURM_VERSION", "").startswith("22.05") and "cloud" not in running.get("PrivateData", ""):
        wrong.append("PrivateData=cloud is missing: without it 22.05 hides nodes that are powered down")
    if wrong:
        raise SpotburstError("; ".join(wrong) + " (spotburst render slurm)")
    return "names spotburst's programs"


def _nodes(config: Config, client: CliClient) -> str:
    shown = {node.name: node for node in client.nodes()}
    wanted = [name for nodeset in config.nodesets for name in nodeset.node_names]
    missing = [name for name in wanted if name not in shown]
    if missing:
        raise SpotburstError(f"{fold(missing)}: in burst.yaml, not in slurm.conf (spotburst render slurm)")
    foreign = [name for name in wanted if not shown[name].has("CLOUD")]
    if foreign:
        raise SpotburstError(f"{fold(foreign)}: not State=CLOUD in slurm.conf, so Slurm does not power it up and down")
    return f"all {len(wanted)} are in slurm.conf"


def _state_dir(path: Path) -> str:
    if not path.is_dir():
        raise SpotburstError(f"{path}: is not there; the manager's service makes it, owned by SlurmUser, mode 0700")
    mode = path.stat().st_mode & 0o777
    if mode & 0o022:
        raise SpotburstError(f"{path}: others may write to it (mode {mode:o}): chmod 0700")
    return str(path)


def _manager(state_dir: Path) -> str:
    where = state_dir / "manager.sock"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(str(where))
    except PermissionError:
        raise SpotburstError(f"{where}: no permission to look; run this as SlurmUser or root") from None
    except OSError:
        raise SpotburstError("does not run: start `spotburst manager` (spotburst render manager-service)") from None
    return "runs"


def _store(config: Config) -> str:
    open_store(config.checkpoints.uri, endpoint_url=config.checkpoints.endpoint_url or "")
    return f"{config.checkpoints.uri}: safe (spotburst store check measures it)"
