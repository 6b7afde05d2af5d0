"""Power saving: how Slurm asks for machines and gives them back. Pure.

What Slurm does with each setting was read in its source at 22.05.8, 24.11.5 and 25.11.7 (src/slurmctld/power_save.c, node_mgr.c); a rule that
holds for some versions only names them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from slurm_plugin.checks.finding import Finding, fault, note
from slurm_plugin.checks.slurm_conf import SlurmConf
from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import expand, fold

INCLUDE = "take spotburst.conf in as the last line of slurm.conf (spotburst render slurm), then `scontrol reconfigure`"
"""How most settings are set right."""
PROGRAMS = {
    "ResumeProgram": ("spotburst-resume", "no machine is ever asked for"),
    "SuspendProgram": (
        "spotburst-suspend",
        "machines of idle nodes are ended late, by the manager's own look at Slurm",
    ),
    "ResumeFailProgram": ("spotburst-resume-fail", "a machine that came too late is ended late"),
}
_SLOW_LOOKS = 30
"""Seconds."""


def power_saving(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    """All of it."""
    yield from _programs(conf)
    yield from _idle(config, conf)
    yield from _times(config, conf)
    yield from _exceptions(config, conf)
    yield from _controller_words(conf)
    if conf.number("ReturnToService") != 2:
        yield fault(
            "ReturnToService",
            f"it is {conf.text('ReturnToService')}: a node whose machine registers after Slurm gave it up stays DOWN for good "
            "(with 1 all but those with the reason 'Not responding')",
            f"ReturnToService=2; {INCLUDE}",
        )


def _programs(conf: SlurmConf) -> Iterator[Finding]:
    for key, (name, without) in PROGRAMS.items():
        path = conf.text(key).split(" ")[0]
        if not path:
            yield fault(key, f"it is not set: {without}", f"{key}={name} of spotburst, with its folder; {INCLUDE}")
        elif not path.startswith("/"):
            yield fault(key, f"{path} is no absolute path: Slurm turns power saving off for it", f"{key}=/…/{name}")
        elif path.rpartition("/")[2] != name:
            yield note(
                key,
                f"{path} is not spotburst's own: unless it calls {name} with its argument, {without}",
                f"{key}={name} of spotburst, with its folder",
            )


def _idle(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    """SuspendTime: the highest of a node's partitions, where any of them has one; else the cluster's (man slurm.conf of 22.05 to 25.11)."""
    ours = {node for nodeset in config.nodesets for node in nodeset.node_names}
    of_nodes: dict[str, float | None] = {}
    for partition in conf.partitions:
        for node in partition.nodes:
            times = [time for time in (of_nodes.get(node), partition.suspend_time) if time is not None]
            of_nodes[node] = max(times, default=None)
    of_cluster = conf.number("SuspendTime")
    by_default = math.inf if of_cluster is None else of_cluster
    seconds = {node: by_default if time is None else time for node, time in of_nodes.items()}
    asked = f"SuspendTime={config.power.suspend_time:.0f}"
    if of_cluster is None and all(partition.suspend_time in (None, math.inf) for partition in conf.partitions):
        yield fault(
            "SuspendTime",
            "no partition has one, which turns power saving off: Slurm asks for no machine and gives none back",
            f"{asked} in the lines of our partitions; {INCLUDE}",
        )
        return
    if never := [node for node in seconds if node in ours and seconds[node] == math.inf]:
        yield fault(
            "SuspendTime",
            f"{fold(never)}: never powered down, so machines that nobody uses go on to cost money",
            f"{asked} in the line of each partition that has them, or no SuspendTime there; {INCLUDE}",
        )
    shortest = min((seconds[node] for node in ours & set(seconds)), default=math.inf)
    if shortest < min(30, config.power.suspend_time):
        yield note(
            "SuspendTime",
            f"it is {shortest:.0f}: a replacement that was prepared may be powered down before its job is back",
            "SuspendTime=60 or more",
        )
    if conf.text("ResumeProgram").split(" ")[0].rpartition("/")[2] != PROGRAMS["ResumeProgram"][0]:
        return  # a program of the site's, which may know its own nodes
    kept, parts = _kept(conf), _kept_partitions(conf)
    kept |= {node for partition in conf.partitions if partition.name.lower() in parts for node in partition.nodes}
    if others := [node for node in seconds if node not in ours | kept and seconds[node] != math.inf]:
        yield fault(
            "SuspendTime",
            f"{fold(others)}: powered down when idle, and spotburst-resume starts no nodes but burst.yaml's again",
            "take SuspendTime out of slurm.conf (spotburst.conf sets it for its partitions), or name these nodes in SuspendExcNodes; "
            "then restart slurmctld",
        )


def _times(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    ours = {node for nodeset in config.nodesets for node in nodeset.node_names}
    resume, wanted = conf.number("ResumeTimeout"), config.power.resume_timeout
    if resume is not None and resume < wanted:
        yield fault(
            "ResumeTimeout",
            f"it is {resume} s, while burst.yaml gives machines {wanted:.0f} s to boot: Slurm sets the node DOWN first, its job is "
            "requeued and the machine is ended",
            f"ResumeTimeout={wanted:.0f}, or power.resume_timeout in burst.yaml; {INCLUDE}",
        )
    rate = conf.number("ResumeRate") or 0
    if 0 < rate < len(ours):
        yield note(
            "ResumeRate",
            f"it is {rate} a minute, and there are {len(ours)} nodes: Slurm leaves requests unmade without a word",
            f"ResumeRate=0, which is no limit; {INCLUDE}",
        )


def _kept(conf: SlurmConf) -> set[str]:
    """Nodes that are never powered down."""
    try:
        # nid[1-9]:4 keeps four of them.
        return set(expand(re.sub(r":\d+", "", conf.text("SuspendExcNodes"))))
    except ConfigError:
        return set()


def _kept_partitions(conf: SlurmConf) -> set[str]:
    return {word.partition(":")[0] for word in conf.words("SuspendExcParts")}


def _exceptions(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    ours = [node for nodeset in config.nodesets for node in nodeset.node_names]
    kept = _kept(conf)
    if excluded := [node for node in ours if node in kept]:
        yield fault(
            "SuspendExcNodes",
            f"{fold(excluded)}: never powered down, so machines that nobody uses go on to cost money",
            f"take {fold(excluded)} out of SuspendExcNodes, then `scontrol reconfigure`",
        )
    partitions = {partition.name.lower() for partition in config.partitions}
    if parts := sorted(_kept_partitions(conf) & partitions):
        yield fault(
            "SuspendExcParts",
            f"{', '.join(parts)}: its nodes are never powered down, so machines that nobody uses go on to cost money",
            f"take {', '.join(parts)} out of SuspendExcParts, then `scontrol reconfigure`",
        )
    # 23.02 on.
    if states := [word for word in conf.words("SuspendExcStates") if word in ("cloud", "down", "not_responding")]:
        yield fault(
            "SuspendExcStates",
            f"{', '.join(states).upper()}: nodes of that state are never powered down; those whose machine is gone stay lost",
            f"take {', '.join(states).upper()} out of SuspendExcStates, then `scontrol reconfigure`",
        )


def _controller_words(conf: SlurmConf) -> Iterator[Finding]:
    words = conf.words("SlurmctldParameters")
    joined = "join it with the words that are there: of two lines SlurmctldParameters Slurm takes the last"
    if "idle_on_node_suspend" not in words:
        yield fault(
            "SlurmctldParameters",
            "idle_on_node_suspend is missing: a node that was DOWN or drained when its machine was ended stays so, and gets no job again",
            f"SlurmctldParameters=idle_on_node_suspend; {joined}; {INCLUDE}",
        )
    if conf.version < (23, 11, 0) and "cloud_reg_addrs" not in words:
        yield fault(
            "SlurmctldParameters",
            f"cloud_reg_addrs is missing: Slurm {conf.version_text} then does not learn a machine's address when it registers",
            f"SlurmctldParameters=cloud_reg_addrs; {joined}; {INCLUDE}",
        )
    if "cloud_dns" in words:
        yield fault(
            "SlurmctldParameters",
            "cloud_dns: Slurm leaves nodes' addresses to DNS, which does not know machines that are made now, so steps on several nodes do "
            "not start",
            "take cloud_dns out of SlurmctldParameters, then `scontrol reconfigure`",
        )
    for name in ("power_save_interval", "power_save_min_interval"):
        value = next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")
        if value.isdecimal() and int(value) > _SLOW_LOOKS:
            yield fault(
                "SlurmctldParameters",
                f"{name}={value}: a job that needs a machine waits so many seconds before Slurm asks for it"
                + (" (24.05 and later refuse it)" if int(value) > 60 else ""),
                f"leave {name} out of SlurmctldParameters (10 s), then `scontrol reconfigure`",
            )
