"""Names, nodes, privacy, silence, state: what slurmctld has to know and to keep. Pure.

Read in Slurm's source at 22.05.8, 23.11.0 and 25.11.7; a rule that holds for some versions only names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurm_plugin.checks.finding import Finding, fault, note
from slurm_plugin.checks.power import INCLUDE
from slurm_plugin.checks.slurm_conf import RUNNING, SlurmConf
from slurm_plugin.config import Config
from slurm_plugin.render import OLDEST
from slurm_plugin.slurm.hostlist import fold
from slurm_plugin.slurm.records import Node

_SELDOM = 900
"""Seconds."""
VOLATILE = ("tmpfs", "ramfs", "devtmpfs")
SHARED = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "cephfs",
    "ceph",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.ceph",
    "ocfs2",
    "gfs2",
    "weka",
    "wekafs",
)


def cluster(config: Config, conf: SlurmConf, *, controller: bool) -> Iterator[Finding]:
    """Settings of slurmctld that are about the cluster as a whole. ``controller``: this machine runs slurmctld."""
    if conf.version < OLDEST:
        yield fault("Slurm", f"{conf.version_text} is too old", "upgrade Slurm to 22.05 or later")
    if conf.text("ClusterName") != config.cluster:
        yield fault(
            "ClusterName",
            f"ClusterName is {conf.text('ClusterName')!r}, burst.yaml's cluster is {config.cluster!r}: runs and machines are found by that name",
            f"cluster: {conf.text('ClusterName') or 'NAME'} in burst.yaml, before the first job (the ClusterName of a cluster that runs is not to be changed)",
        )
    yield from _read_again(conf, controller=controller)
    yield from _silence(config, conf)
    yield from _privacy(conf)
    count = sum(len(nodeset.node_names) for nodeset in config.nodesets)
    width = conf.number("TreeWidth")
    # 23.11 brought addresses along with what is forwarded.
    if conf.version < (23, 11, 0) and width is not None and width < count:
        yield fault(
            "TreeWidth",
            f"it is {width}, and there are {count} nodes: Slurm {conf.version_text} has nodes forward messages to nodes whose address they do "
            "not know, which are then taken for lost",
            f"TreeWidth=65533; {INCLUDE}",
        )


def _read_again(conf: SlurmConf, *, controller: bool) -> Iterator[Finding]:
    if not conf.text("HASH_VAL").startswith("Different"):
        return
    if controller:
        yield fault(
            "slurm.conf",
            "the file has changed since slurmctld read it, so what holds is not what stands there",
            "`scontrol reconfigure`; where nodes have come or gone, before 23.11, `systemctl restart slurmctld` (jobs go on)",
        )
    else:
        yield note(
            "slurm.conf",
            "the file here is not the controller's",
            "copy the controller's slurm.conf, and what it includes, here",
        )


def _silence(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    patience = config.manager.silent_down
    timeout = conf.number("SlurmdTimeout")
    if not timeout:
        yield fault(
            "SlurmdTimeout",
            "it is 0: Slurm asks no node whether it is still there, so a machine that vanished without a notice is never missed",
            "SlurmdTimeout=300; then `scontrol reconfigure`",
        )
    elif timeout > _SELDOM:
        yield fault(
            "SlurmdTimeout",
            f"it is {timeout} s: Slurm asks each node once in a third of it, so a machine that vanished is missed only after {timeout // 3} s",
            "SlurmdTimeout=300; then `scontrol reconfigure`",
        )
    elif timeout < patience:
        yield fault(
            "SlurmdTimeout",
            f"it is {timeout} s, shorter than manager.silent_down ({patience:.0f} s): Slurm sets a node DOWN for a short cut of the network, "
            "before a replacement is prepared",
            "SlurmdTimeout=300; then `scontrol reconfigure`",
        )


def _privacy(conf: SlurmConf) -> Iterator[Finding]:
    private = conf.words("PrivateData")
    if conf.version < (23, 2, 0) and "cloud" not in private:
        yield fault(
            "PrivateData",
            f"cloud is missing: without it Slurm {conf.version_text} hides nodes that are powered down, from spotburst too",
            f"PrivateData=cloud, beside the words that are there; {INCLUDE}",
        )
    if hidden := [word for word in ("nodes", "partitions") if word in private]:
        yield note(
            "PrivateData",
            f"{', '.join(hidden)}: plain users get no answer from `spotburst nodes`, and `describe` can't tell what their job waits for",
            f"take {', '.join(hidden)} out of PrivateData, if that is not wanted",
        )


def nodes(config: Config, conf: SlurmConf, shown: Iterable[Node]) -> Iterator[Finding]:
    """burst.yaml's nodes and partitions as Slurm has them. ``shown``: all that Slurm shows."""
    known = {node.name: node for node in shown}
    wanted = [name for nodeset in config.nodesets for name in nodeset.node_names]
    missing = [name for name in wanted if name not in known]
    render = "`spotburst render all --diff`, write spotburst.conf anew, then `scontrol reconfigure` (restart slurmctld before 23.11)"
    if missing:
        yield fault("nodes", f"{fold(missing)}: in burst.yaml, not in slurm.conf", render)
    foreign = [name for name in wanted if name in known and not known[name].has("CLOUD")]
    if foreign:
        yield fault(
            "nodes",
            f"{fold(foreign)}: not State=CLOUD in slurm.conf, so Slurm does not power it up and down",
            f"State=CLOUD in its NodeName line; {INCLUDE}",
        )
    for nodeset in config.nodesets:
        ours = [known[name] for name in nodeset.node_names if name in known]
        other = [node.name for node in ours if node.cpus != nodeset.cpus]
        if other:
            yield fault(
                "nodes",
                f"{fold(other)}: CPUs={known[other[0]].cpus} in slurm.conf, {nodeset.cpus} in burst.yaml, by which its machines are bought",
                render,
            )
        want = nodeset.gpus.count if nodeset.gpus else 0
        other = [node.name for node in ours if _gpus(node.gres) != want]
        if other:
            yield fault(
                "nodes",
                f"{fold(other)}: Gres={known[other[0]].gres or 'none'} in slurm.conf, {want} GPUs in burst.yaml",
                render,
            )
    there = {partition.name for partition in conf.partitions}
    if absent := [partition.name for partition in config.partitions if partition.name not in there]:
        yield fault("partitions", f"{', '.join(absent)}: in burst.yaml, not in slurm.conf", render)


def _gpus(gres: str) -> int:
    return sum(
        int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,9})", re.sub(r"\([^)]*\)", "", gres))
    )


def storage(conf: SlurmConf, state_save: str, state_dir: str) -> Iterator[Finding]:
    """Where what must not be lost is kept. ``state_save``, ``state_dir``: kinds of file system there, "" where not known."""
    if state_save in VOLATILE and conf.source == RUNNING:
        yield fault(
            "StateSaveLocation",
            f"{conf.text('StateSaveLocation')} is on {state_save}, gone with the next boot: job ids then begin again, and a new job meets the "
            "checkpoints of an old one",
            "StateSaveLocation on a disk, such as /var/lib/slurm/slurmctld; stop slurmctld, move the folder, start it again",
        )
    if state_dir in VOLATILE:
        yield fault(
            "state_dir",
            f"it is on {state_dir}, gone with the next boot, while the machines that its ledger knows go on",
            "state_dir in burst.yaml on a disk, such as /var/lib/spotburst; stop the manager, move the folder, start it again",
        )
    if len(conf.hosts) > 1 and state_dir and state_dir not in SHARED:
        yield fault(
            "state_dir",
            f"it is on {state_dir}, this machine's own, and there are {len(conf.hosts)} controllers ({', '.join(conf.hosts)}): the manager that "
            "takes over would know nothing of launches and notices",
            "state_dir in burst.yaml on the storage where StateSaveLocation is",
        )
