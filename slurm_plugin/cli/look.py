"""All checks of a machine, one after another. What an earlier failure makes impossible is left out."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Iterator
from enum import Enum
from pathlib import Path

from job_wrapper.counted import counted
from job_wrapper.errors import UsageError
from job_wrapper.node_config import load_node_config
from slurm_plugin.checks import clocks, reading, rights
from slurm_plugin.checks.cluster import cluster, nodes, storage
from slurm_plugin.checks.finding import Finding, fault, ok, or_well, unknown
from slurm_plugin.checks.jobs import preemption, requeue, signals
from slurm_plugin.checks.power import PROGRAMS, power_saving
from slurm_plugin.checks.slurm_conf import SlurmConf
from slurm_plugin.checks.written import stale
from slurm_plugin.cli.at_clouds import at_clouds
from slurm_plugin.cli.look_node import look_node, unreadable
from slurm_plugin.cli.look_store import look_store
from slurm_plugin.config import Config, find_config, load_config
from slurm_plugin.errors import ConfigError, SlurmRefused, SlurmUnavailable
from slurm_plugin.manager.stores import known_mark
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.connect import connect
from slurm_plugin.slurm.controllers import same_host

INSIDE = ("requests", "ledger.db", "manager.lock", "manager.sock")
"""Of state_dir: what Slurm's programs and the manager share."""


class Role(str, Enum):
    """What a machine is in the cluster."""

    CONTROLLER = "controller"
    LOGIN = "login"
    NODE = "node"


def look(path: Path | None, role: Role | None = None, *, clouds: bool = True) -> Iterator[Finding]:
    """Findings of this machine. ``path``: burst.yaml, None: where it is looked for; ``role``: None finds out what this machine is.

    ``clouds``: whether they are asked, too.
    """
    try:
        node = load_node_config()
    except UsageError as error:
        yield unreadable(error)
        return
    if role is Role.NODE or (role is None and node.node):
        yield from look_node(node)
        if node.uri:
            yield from look_store(node.uri, node.endpoint_url, joins=True, mark=node.store_mark)
        return
    try:
        place = path or find_config()
        config = load_config(place)
    except ConfigError as error:
        yield fault(
            "burst.yaml",
            str(error),
            "mend burst.yaml; docs/ansible.md and docs/placement.md say what stands there (on a compute node: `spotburst check --role node`)",
        )
        return
    yield ok(
        "burst.yaml",
        f"{place}: {counted(len(config.nodesets), 'nodeset')}, {counted(len(config.partitions), 'partition')}",
    )
    conf: SlurmConf | None
    try:
        client = connect(config.slurm)
    except ConfigError as error:
        yield fault("slurmctld", str(error), "slurm: {conf: PATH} in burst.yaml")
        conf = None
    else:
        conf = yield from _slurm(config, client, role)
    here = role or (_role(conf) if conf is not None else None)
    if conf is not None and here is Role.CONTROLLER:
        yield from _rights(config, conf, place)
    if here is not Role.LOGIN:
        yield from _manager(config.state_dir)
    yield from look_store(
        config.checkpoints.uri,
        config.checkpoints.endpoint_url or "",
        joins=here is Role.LOGIN,
        used=here is not Role.LOGIN and bool(known_mark(config)),
    )
    if clouds:
        yield from at_clouds(config)


def _role(conf: SlurmConf) -> Role:
    here = socket.gethostname()
    return Role.CONTROLLER if any(same_host(host, here) for host in conf.hosts) else Role.LOGIN


# --- Slurm ------------------------------------------------------------------------------------------------------------


def _slurm(config: Config, client: CliClient, role: Role | None) -> Generator[Finding, None, SlurmConf | None]:
    """Returns the settings, None where there is nothing to read them from."""
    running = True
    try:
        conf, clock = reading.running_slurm(client)
    except (SlurmUnavailable, SlurmRefused) as error:
        running, clock = False, None
        yield fault(
            "slurmctld",
            f"does not answer: {error}. What follows is by {config.slurm.conf}",
            "`systemctl status slurmctld` on the controller; its log (SlurmctldLogFile) says what it does not like",
        )
        try:
            conf = reading.slurm_from_file(client, config.slurm.conf)
        except ConfigError as error:
            yield unknown("slurm.conf", str(error), "run this as root or SlurmUser")
            return None
    if running:
        yield ok("slurmctld", f"Slurm {conf.version_text}, {config.slurm.conf}")
    here = role or _role(conf)
    found = [
        *cluster(config, conf, controller=here is Role.CONTROLLER),
        *power_saving(config, conf),
        *requeue(config, conf),
        *preemption(config, conf),
        *signals(conf, reading.text_of(config.slurm.conf.parent / "cgroup.conf")),
    ]
    yield from or_well(found, "slurm.conf", "lets jobs be brought back and machines be asked for")
    if running:
        try:
            count = sum(len(nodeset.node_names) for nodeset in config.nodesets)
            yield from or_well(
                nodes(config, conf, client.nodes()),
                "nodes",
                f"{counted(count, 'node')} of burst.yaml, all in slurm.conf",
            )
        except (SlurmUnavailable, SlurmRefused) as error:
            yield unknown("nodes", str(error))
    yield from stale(config, conf)
    if clock is not None and here is not Role.CONTROLLER:
        yield from clocks.agree(clock)
    return conf


# --- the controller ---------------------------------------------------------------------------------------------------


def _rights(config: Config, conf: SlurmConf, burst_yaml: Path) -> Iterator[Finding]:
    user = reading.user(conf.text("SlurmUser"))
    if user is None:
        yield fault(
            "SlurmUser",
            f"there is no account {conf.text('SlurmUser')!r} on this machine",
            "make it, with the same number on all machines",
        )
        return
    found: list[Finding] = []
    for key, (name, _) in PROGRAMS.items():
        path = Path(conf.text(key).split(" ")[0])
        if path.is_absolute():
            found += _program(key, path, user, ours=path.name == name)
    state_dir = reading.facts(config.state_dir)
    found += rights.state_folder(state_dir, {name: reading.facts(config.state_dir / name) for name in INSIDE}, user)
    try:
        # As the power programs look: beside SLURM_CONF, then in the usual places.
        by_programs: Path | None = find_config({"SLURM_CONF": str(config.slurm.conf)})
    except ConfigError:
        by_programs = None
    if by_programs is not None and reading.same_file(by_programs, burst_yaml):
        by_programs = burst_yaml
    found += rights.settings_file(reading.facts(burst_yaml), reading.parents(burst_yaml), user, by_programs)
    save = Path(conf.text("StateSaveLocation"))
    found += rights.saves_state(reading.facts(save), user)
    found += storage(conf, reading.file_system(save), reading.file_system(config.state_dir))
    if (store := reading.store_folder(config.checkpoints.uri)) is not None:
        common = (store / ".spotburst", store / config.cluster, store / config.cluster / "jobs")
        found += rights.shared_store(reading.facts(store), [reading.facts(folder) for folder in common], user)
    yield from or_well(found, "rights", f"{user.name} (SlurmUser) can do its work in {config.state_dir}")


def _program(key: str, path: Path, user: rights.User, *, ours: bool) -> Iterator[Finding]:
    script = reading.interpreter(path)
    found = list(
        rights.program(key, reading.facts(path), reading.parents(path), user, reading.facts(script) if script else None)
    )
    yield from found
    if found or not ours:
        return
    if os.geteuid() not in (0, user.uid):
        yield unknown(
            key, f"whether {user.name} (SlurmUser) can start {path} is not known", "run this as root or SlurmUser"
        )
    elif why := reading.fails_to_start(path, user):
        yield fault(
            key,
            f"{path} does not start as {user.name} (SlurmUser), with the empty environment that Slurm gives: {why}",
            "install spotburst again, where SlurmUser can read it",
        )


def _manager(state_dir: Path) -> Iterator[Finding]:
    start = "start it: `systemctl start spotburst-manager` (spotburst render manager-service prints its unit)"
    try:
        if reading.listens(state_dir / "manager.sock"):
            yield ok("manager", "runs")
            return
        held = reading.holder(state_dir / "manager.lock")
    except PermissionError:
        yield unknown("manager", f"{state_dir}: no permission to look", "run this as root or SlurmUser")
        return
    except OSError:
        held = None
    process, _, host = (held or "").partition(" ")
    if host and not same_host(host, socket.gethostname()):
        yield ok("manager", f"runs on {host} (process {process})")
    elif held is not None:
        yield fault(
            "manager",
            f"process {process} holds {state_dir / 'manager.lock'} and does not listen",
            "`systemctl restart spotburst-manager`",
        )
    else:
        yield fault("manager", "does not run: nobody launches machines, and nobody ends them", start)
