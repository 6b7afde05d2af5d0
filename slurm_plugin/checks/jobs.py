"""How jobs come back: requeue, preemption, signals, exit codes. Pure. Read in Slurm's source at 22.05.8, 24.11.5 and 25.11.7."""

from __future__ import annotations

from collections.abc import Iterator

from job_wrapper.errors import ExitCode
from slurm_plugin.checks.finding import Finding, fault, note
from slurm_plugin.checks.power import INCLUDE
from slurm_plugin.checks.slurm_conf import SlurmConf
from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import expand
from slurm_plugin.slurm.records import Partition

_SHORT = 30
"""Seconds within which a checkpoint of some size is hardly made."""
_LONG = 120
"""Seconds: the longest notice that a cloud gives."""


def requeue(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    """What a job needs to come back with all that it had."""
    if conf.text("JobRequeue") == "0":
        yield fault(
            "JobRequeue",
            "it is 0: jobs are not brought back unless submitted with --requeue",
            f"JobRequeue=1; {INCLUDE}",
        )
    if conf.text("JobFileAppend") != "1":
        yield fault(
            "JobFileAppend",
            "it is 0: each attempt of a job empties the output of those before it, unless submitted with --open-mode=append",
            f"JobFileAppend=1; {INCLUDE}",
        )
    age = conf.number("MinJobAge") or 0
    if 0 < age <= config.manager.requeue_window:
        yield fault(
            "MinJobAge",
            f"it is {age} s: Slurm forgets an ended job before the manager, which has {config.manager.requeue_window:.0f} s for it "
            "(manager.requeue_window), can bring back one that lost its wrapper",
            "MinJobAge=300, then `scontrol reconfigure`, or a shorter manager.requeue_window in burst.yaml",
        )
    for key, what in (("RequeueExit", "brought back again and again"), ("RequeueExitHold", "held")):
        codes = sorted(_codes(conf.text(key)) & {code.value for code in ExitCode if code >= ExitCode.FENCED})
        if codes:
            yield fault(
                key,
                f"it has {', '.join(map(str, codes))}, with which spotburst ends a job for good: such a job would be {what}",
                f"leave 80 to 99 out of {key}, then `scontrol reconfigure`",
            )
    flags = conf.words("PrologFlags")
    runs = bool(conf.text("Prolog"))
    if runs and "nohold_on_prolog_fail" not in conf.words("SchedulerParameters"):
        yield note(
            "Prolog",
            "a machine that is taken back while Slurm's Prolog runs makes it fail, and Slurm then holds the job until the manager lets it go",
            "add nohold_on_prolog_fail to SchedulerParameters, then `scontrol reconfigure`",
        )
    if runs and "serial" in flags:
        yield note(
            "PrologFlags",
            "Serial: on a node Prolog and Epilog run one after another, so a job that comes back waits there for those of others",
            "take Serial out of PrologFlags; needs a restart of slurmctld and slurmd",
        )


def _codes(text: str) -> set[int]:
    try:
        return {int(code) for code in expand(f"[{text}]") if code.isdecimal()} if text else set()
    except (ConfigError, ValueError):
        return set()


def preemption(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    """Partitions that take nodes from others, as burst.yaml wants them."""
    running = {partition.name: partition for partition in conf.partitions}
    contested = [p for p in config.partitions if p.preempt_mode != "off" and _has_a_better(config, p.name)]
    kind = conf.text("PreemptType")
    if contested and kind == "preempt/none":
        yield fault(
            "PreemptType",
            f"it is {kind}: no job gets a node of {', '.join(p.name for p in contested)} while another runs there, whatever its priority_tier",
            f"PreemptType=preempt/partition_prio; {INCLUDE}",
        )
    if kind == "preempt/qos" and conf.text("AccountingStorageType") in ("", "accounting_storage/none"):
        yield fault(
            "AccountingStorageType",
            "it is none, while PreemptType=preempt/qos takes its rules from the accounting database: nothing is preempted",
            "AccountingStorageType=accounting_storage/slurmdbd, or PreemptType=preempt/partition_prio; then restart slurmctld",
        )
    for wanted in config.partitions:
        found = running.get(wanted.name)
        if found is not None:
            yield from _partition(wanted.preempt_mode, int(wanted.grace_time), found)
    wait = conf.number("KillWait") or 0
    hurried = [p.name for p in contested if p.preempt_mode == "requeue" and not p.grace_time]
    if wait < _SHORT and hurried and kind != "preempt/none":
        yield fault(
            "KillWait",
            f"it is {wait} s, and {', '.join(hurried)} have no grace_time: a job that is preempted has {max(wait, 5)} s to save",
            "KillWait=30, then `scontrol reconfigure`, or grace_time: 60s for the partition in burst.yaml",
        )
    if wait > _LONG:
        yield fault(
            "KillWait",
            f"it is {wait} s, longer than any notice of a cloud: where a step does not end by itself, its job is not free to start elsewhere "
            "before its machine is gone",
            "KillWait=30, then `scontrol reconfigure`",
        )


def _has_a_better(config: Config, name: str) -> bool:
    mine = next(p for p in config.partitions if p.name == name)
    return any(p.priority_tier > mine.priority_tier and set(p.nodesets) & set(mine.nodesets) for p in config.partitions)


def _partition(mode: str, grace: int, found: Partition) -> Iterator[Finding]:
    what = f"partition {found.name}"
    if mode == "requeue" and "CANCEL" in found.preempt_mode:
        yield fault(
            what,
            "PreemptMode=CANCEL: a job that is preempted ends for good",
            f"PreemptMode=REQUEUE for PartitionName={found.name}; {INCLUDE}",
        )
    elif mode == "requeue" and ("SUSPEND" in found.preempt_mode or "GANG" in found.preempt_mode):
        yield fault(
            what,
            "PreemptMode=SUSPEND: a job that is preempted stays stopped in the memory of a machine that may be taken back, and hears nothing",
            f"PreemptMode=REQUEUE for PartitionName={found.name}; {INCLUDE}",
        )
    elif mode == "requeue" and found.preempt_mode == "OFF":
        yield note(
            what,
            "PreemptMode=OFF, while burst.yaml has preempt_mode requeue: its jobs are never preempted",
            f"PreemptMode=REQUEUE for PartitionName={found.name}; {INCLUDE}",
        )
    if mode != "off" and found.grace_time < grace:
        yield fault(
            what,
            f"GraceTime={found.grace_time}, while burst.yaml has {grace} s: a job that is preempted has less time to save than it is told",
            f"GraceTime={grace} for PartitionName={found.name}; {INCLUDE}",
        )


def signals(conf: SlurmConf, cgroup_conf: str | None) -> Iterator[Finding]:
    """Whom a signal reaches. ``cgroup_conf``: that file's text, None where it can't be read."""
    kind = conf.text("ProctrackType")
    if kind == "proctrack/pgid":
        yield fault(
            "ProctrackType",
            "proctrack/pgid knows a step by its process group: programs that leave it, as data loaders and shells do, hear no signal and "
            "outlive the attempt",
            "ProctrackType=proctrack/cgroup; needs a restart of slurmctld and slurmd",
        )
    asks = any(
        line.replace(" ", "").lower() == "signalchildrenprocesses=yes" for line in (cgroup_conf or "").splitlines()
    )
    if kind == "proctrack/cgroup" and conf.version >= (23, 11, 0) and cgroup_conf is not None and not asks:
        yield note(
            "cgroup.conf",
            "with proctrack/cgroup a signal reaches only the first process of a task: `srun bash -c 'spotburst run …'` hears no preemption "
            "(`srun spotburst run …` does)",
            "SignalChildrenProcesses=yes in cgroup.conf (spotburst render cgroup)",
        )
