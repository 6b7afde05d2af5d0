"""Rules about slurm.conf that need no slurmctld to be seen, and how its file is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin import render
from slurm_plugin.checks import clocks
from slurm_plugin.checks.cluster import cluster, storage
from slurm_plugin.checks.finding import Finding, State, exit_code, fault, note, ok, unknown
from slurm_plugin.checks.jobs import preemption, requeue, signals
from slurm_plugin.checks.power import power_saving
from slurm_plugin.checks.reading import running_slurm
from slurm_plugin.checks.slurm_conf import SlurmConf, shown, written
from slurm_plugin.config import Config, load_config
from slurm_plugin.errors import ConfigError
from slurm_plugin.local_cluster.settings import default_settings

VERSIONS = [(22, 5, 8), (23, 2, 7), (23, 11, 4), (24, 11, 5), (25, 11, 7)]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "burst.yaml"
    path.write_text(
        yaml.safe_dump({**default_settings(3, gpus=0, grace_time=30), "checkpoints": {"uri": "file:///shared"}})
    )
    return load_config(path)


def as_rendered(config: Config, version: render.Version, more: str = "") -> SlurmConf:
    site = render.Site("ctl", "10.0.0.1", Path("/var/lib/slurm"), Path("/var/log"), Path("/run"), kill_wait=30)
    text = render.slurm_conf(config, site, version, render.Programs.beside_python(Path("/opt/spotburst/bin/python")))
    return written(Path("/etc/slurm/slurm.conf"), version, lambda _: text + more)


def all_of(config: Config, conf: SlurmConf) -> list[Finding]:
    return [
        *cluster(config, conf, controller=True),
        *power_saving(config, conf),
        *requeue(config, conf),
        *preemption(config, conf),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_rendered_is_well(config: Config, version: render.Version) -> None:
    assert all_of(config, as_rendered(config, version)) == []


@pytest.mark.parametrize(
    ("version", "line", "what"),
    [
        ((24, 11, 5), "ReturnToService=1", "ReturnToService"),
        ((24, 11, 5), "SlurmdTimeout=3600", "SlurmdTimeout"),
        ((24, 11, 5), "RequeueExitHold=85", "RequeueExitHold"),
        ((23, 2, 7), "SuspendExcStates=CLOUD", "SuspendExcStates"),
        ((23, 2, 7), "TreeWidth=2", "TreeWidth"),
        ((23, 2, 7), "SlurmctldParameters=idle_on_node_suspend", "SlurmctldParameters"),
        ((25, 11, 7), "SuspendProgram=spotburst-suspend", "SuspendProgram"),
        ((22, 5, 8), "KillWait=200", "KillWait"),
        ((22, 5, 8), "PartitionName=more Nodes=spot-2 SuspendTime=INFINITE", "SuspendTime"),
        ((24, 11, 5), "PartitionName=own Nodes=own-[1-2]\nSuspendTime=300", "SuspendTime"),
    ],
)
def test_one_line_more(config: Config, version: render.Version, line: str, what: str) -> None:
    (found,) = all_of(config, as_rendered(config, version, line + "\n"))
    assert (found.what, found.state) == (what, State.FAULT)
    assert found.fix


@pytest.mark.parametrize(
    ("version", "line"),
    [
        # What a later version no longer needs.
        ((24, 11, 5), "TreeWidth=2"),
        ((24, 11, 5), "PrivateData=jobs"),
        ((24, 11, 5), "SlurmctldParameters=idle_on_node_suspend"),
        ((22, 5, 8), "RequeueExit=1-79,100-255"),
        ((22, 5, 8), "SuspendExcNodes=other-[1-9]:4"),
        ((24, 11, 5), "PartitionName=own Nodes=own-[1-2],spot-[1-3]\nSuspendTime=INFINITE"),
        ((24, 11, 5), "PartitionName=own Nodes=own-[1-2]\nSuspendTime=300\nSuspendExcNodes=own-[1-2]"),
        ((24, 11, 5), "PartitionName=own Nodes=own-[1-2]\nSuspendTime=300\nSuspendExcParts=own:1"),
    ],
)
def test_lines_that_do_no_harm(config: Config, version: render.Version, line: str) -> None:
    assert all_of(config, as_rendered(config, version, line + "\n")) == []


def test_the_file_is_read_as_slurm_reads_it(tmp_path: Path) -> None:
    files = {
        "slurm.conf": 'clustername=lab # a comment\nKillWait=5 MinJobAge = 60\nPrivateData="jobs,cloud"\nInclude other.conf\n'
        "NodeName=a CPUs=1 KillWait=99\nSlurmctldHost=one(10.0.0.1)\nSlurmctldHost=two\n",
        "other.conf": "KILLWAIT=30\nSlurmctldParameters=a,\\\nB\nPartitionName=DEFAULT MaxTime=1\nPartitionName=p Nodes=a-[1-2] GraceTime=7 "
        "PriorityTier=3 PreemptMode=cancel\n",
    }  # fmt: skip
    conf = written(tmp_path / "slurm.conf", (22, 5, 8), lambda path: files[path.name])
    assert (conf.text("ClusterName"), conf.number("KillWait"), conf.number("MinJobAge")) == ("lab", 30, 60)
    assert (conf.words("PrivateData"), conf.words("SlurmctldParameters")) == (("jobs", "cloud"), ("a", "b"))
    assert conf.hosts == ("one", "two")
    (part,) = conf.partitions
    assert (part.name, part.nodes, part.grace_time, part.priority_tier, part.preempt_mode) == (
        "p",
        ("a-1", "a-2"),
        7,
        3,
        "CANCEL",
    )
    assert (conf.number("ResumeTimeout"), conf.number("SuspendTime"), conf.text("TreeWidth")) == (60, None, "50")
    with pytest.raises(ConfigError, match="does a file include itself"):
        written(tmp_path / "slurm.conf", (22, 5, 8), lambda _: "Include slurm.conf")


def test_as_scontrol_shows_it() -> None:
    text = "Configuration data as of 2026-01-01T00:00:00\nKillWait                = 30 sec\nSuspendTime = INFINITE\nPrologFlags = (null)\nSlurmctldHost[0]        = vm(127.0.0.1)\n"
    conf = shown(text, (22, 5, 8), ())
    assert (conf.number("KillWait"), conf.number("SuspendTime"), conf.text("PrologFlags"), conf.hosts) == (
        30,
        None,
        "",
        ("vm",),
    )


def of(
    values: Mapping[str, Any], version: render.Version = (24, 11, 5), hosts: tuple[str, ...] = ("one",)
) -> SlurmConf:
    return SlurmConf({k.lower(): v for k, v in values.items()}, version, "slurmctld", (), hosts)


def test_signals_reach_the_first_process_only() -> None:
    conf = of({"ProctrackType": "proctrack/cgroup"})
    (found,) = signals(conf, "")
    assert "SignalChildrenProcesses=yes" in found.fix
    assert list(signals(conf, "CgroupPlugin=autodetect\nSignalChildrenProcesses = yes\n")) == []
    assert list(signals(conf, None)) == [], "a file that can't be read tells nothing"
    assert list(signals(of({"ProctrackType": "proctrack/cgroup"}, (22, 5, 8)), "")) == [], "22.05 has no such word"


def test_two_controllers_need_one_state_dir() -> None:
    (found,) = storage(of({}, hosts=("one", "two")), "nfs4", "ext4")
    assert "there are 2 controllers (one, two)" in found.detail
    assert list(storage(of({}, hosts=("one", "two")), "nfs4", "nfs4")) == []
    assert list(storage(of({}), "ext4", "ext4")) == []


@pytest.mark.parametrize(
    ("moment", "grain", "skew"), [(100.0, 0, 0), (95.0, 1, -4), (99.5, 1, 0), (120.0, 1, 19), (101.0, 0, 0)]
)
def test_clocks(moment: float, grain: float, skew: float) -> None:
    assert clocks.least_skew(clocks.Reading("x", moment, 100.0, 101.0, grain)) == skew


def test_a_clock_that_is_off() -> None:
    (found,) = clocks.agree(clocks.Reading("the controller's clock", 1000.0, 1060.0, 1060.5, 1.0))
    assert found.state is State.FAULT
    assert "is 59 s behind this machine" in found.detail
    assert "timedatectl set-ntp true" in found.fix


def test_exit_codes() -> None:
    assert exit_code([ok("a", ""), note("b", "", "")]) == 0
    assert exit_code([ok("a", ""), unknown("b", "")]) == 2
    assert exit_code([fault("a", "", "x"), unknown("b", "")]) == 1


class Showing:
    """A client that shows a text as slurmctld's settings."""

    def __init__(self, text: str) -> None:
        self.shown_config = lambda: text

    def partitions(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("moment", ["2026-99-99T99:99:99", "2026-02-31T00:00:00", "9999-12-31T23:59:59"])
def test_settings_that_no_slurmctld_shows(moment: str) -> None:
    text = f"Configuration data as of {moment}\nKillWait = {'9' * 5000} sec\nSLURM_VERSION = 22.05.{'9' * 5000}\n"
    conf, clock = running_slurm(Showing(text))  # type: ignore[arg-type]
    assert clock is None or moment.startswith("9999")
    assert conf.number("KillWait") == int("9" * 18)


def test_a_file_of_one_long_word_is_read_at_once() -> None:
    text = "x" * 200_000 + f" PartitionName=p GraceTime=² PriorityTier={'9' * 5000}\nPartitionName=q GraceTime=²\n"
    conf = written(Path("/etc/slurm/slurm.conf"), (22, 5, 8), lambda _: text)
    assert [(p.name, p.grace_time, p.priority_tier) for p in conf.partitions] == [("p", 0, 1), ("q", 0, 1)]
