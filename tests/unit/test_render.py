"""The rendered files: what Slurm, systemd and cloud-init are told, by version."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from job_wrapper.node_config import load_node_config
from slurm_plugin import render
from slurm_plugin.config import Config, load_config
from slurm_plugin.errors import ConfigError
from slurm_plugin.local_cluster.settings import default_settings
from tests.fixtures.unmet import need_program

PROGRAMS = render.Programs.beside_python(Path("/opt/spotburst/bin/python"))
VERSIONS = [(22, 5, 8), (23, 2, 0), (23, 11, 4), (24, 5, 0), (24, 11, 5), (25, 11, 7)]


def config(tmp_path: Path, **changes) -> Config:
    settings = {
        **default_settings(3, ondemand=2, gpus=2, grace_time=30),
        "checkpoints": {"uri": "file:///shared"},
        **changes,
    }
    path = tmp_path / "burst.yaml"
    path.write_text(yaml.safe_dump(settings))
    return load_config(path)


def site(tmp_path: Path) -> render.Site:
    return render.Site(
        "ctl", "10.0.0.1", tmp_path / "state", tmp_path / "log", tmp_path / "run", munge_socket=tmp_path / "m.sock"
    )


def keys(text: str) -> dict[str, str]:
    """Settings that stand on lines of their own; each may stand there once only."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", "NodeName=", "PartitionName=")):
            key, value = line.split("=", 1)
            assert key not in found, f"{key} is set twice"
            found[key] = value
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_what_every_version_is_told(tmp_path: Path, version: render.Version) -> None:
    for text in (
        render.slurm_conf(config(tmp_path), site(tmp_path), version, PROGRAMS),
        render.spotburst_conf(config(tmp_path), version, PROGRAMS, Path("/etc/slurm/spotburst.conf")),
    ):
        told = keys(text)
        assert told["ResumeProgram"] == "/opt/spotburst/bin/spotburst-resume"
        assert told["SuspendProgram"] == "/opt/spotburst/bin/spotburst-suspend"
        assert told["ResumeFailProgram"] == "/opt/spotburst/bin/spotburst-resume-fail"
        assert told["PreemptType"] == "preempt/partition_prio"
        assert (told["PreemptMode"], told["JobRequeue"], told["ReturnToService"]) == ("REQUEUE", "1", "2")
        assert told["JobFileAppend"] == "1"
        assert "idle_on_node_suspend" in told["SlurmctldParameters"].split(",")


@pytest.mark.parametrize(
    ("version", "said", "unsaid"),
    [
        (
            (22, 5, 8),
            ["cloud_reg_addrs", "preempt_send_user_signal", "PrivateData=cloud"],
            ["PreemptParameters", "requeue_delay"],
        ),
        (
            (23, 2, 0),
            ["cloud_reg_addrs", "PreemptParameters=send_user_signal"],
            ["PrivateData", "preempt_send", "requeue_delay"],
        ),
        ((23, 11, 0), ["PreemptParameters"], ["cloud_reg_addrs", "PrivateData", "requeue_delay"]),
        ((25, 11, 7), ["requeue_delay=1"], ["cloud_reg_addrs", "PrivateData"]),
    ],
)
def test_what_differs_between_versions(
    tmp_path: Path, version: render.Version, said: list[str], unsaid: list[str]
) -> None:
    text = render.slurm_conf(config(tmp_path), site(tmp_path), version, PROGRAMS)
    assert [word for word in said if word not in text] == []
    assert [word for word in unsaid if word in text] == []


def test_nodes_and_partitions(tmp_path: Path) -> None:
    text = render.slurm_conf(config(tmp_path), site(tmp_path), (22, 5, 8), PROGRAMS)
    nodes = [line for line in text.splitlines() if line.startswith("NodeName=")]
    assert nodes == [
        "NodeName=spot-[1-3] CPUs=1 RealMemory=500 Gres=gpu:tiny:2 Feature=spot Weight=10 State=CLOUD",
        "NodeName=ondemand-[1-2] CPUs=1 RealMemory=500 Gres=gpu:tiny:2 Feature=ondemand Weight=20 State=CLOUD",
    ]
    spot, ondemand, urgent = (line for line in text.splitlines() if line.startswith("PartitionName="))
    assert "Nodes=spot-[1-3] Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=30" in spot
    assert "Default=NO" in ondemand
    assert "Nodes=ondemand-[1-2],spot-[1-3] Default=NO PriorityTier=10 PreemptMode=OFF" in urgent


def test_a_gpu_has_a_line_and_a_file(tmp_path: Path) -> None:
    lines = [line for line in render.gres_conf(config(tmp_path)).splitlines() if not line.startswith("#")]
    assert lines[0] == "NodeName=spot-[1-3] Name=gpu Type=tiny File=/run/spotburst/gpu0"
    assert len(lines) == 4
    without = config(
        tmp_path, **{k: v for k, v in default_settings(1, gpus=0).items() if k in ("nodesets", "partitions")}
    )
    assert "NodeName" not in render.gres_conf(without)
    assert "Gres" not in render.slurm_conf(without, site(tmp_path), (22, 5, 8), PROGRAMS)


def test_cgroup_conf_by_version() -> None:
    assert "CgroupPlugin=disabled" in render.cgroup_conf((24, 5, 0), embedded=True)
    assert "CgroupPlugin=cgroup/v1" in render.cgroup_conf((22, 5, 8), embedded=True)
    assert "SignalChildrenProcesses=yes" in render.cgroup_conf((23, 11, 0), embedded=False)
    assert "SignalChildrenProcesses" not in render.cgroup_conf((22, 5, 8), embedded=False)


def test_versions_are_read_as_slurm_says_them() -> None:
    assert render.parse_version("slurm-wlm 22.05.8\n") == (22, 5, 8)
    assert render.parse_version("slurm 25.11.0-0rc1") == (25, 11, 0)
    with pytest.raises(ConfigError, match="not the answer of a Slurm"):
        render.parse_version("command not found")


def test_an_old_slurm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs 22\.05 or later"):
        render.slurm_conf(config(tmp_path), site(tmp_path), (21, 8, 0), PROGRAMS)


def test_node_json_is_what_the_wrapper_reads(tmp_path: Path) -> None:
    made = config(tmp_path)
    nodeset = made.nodesets[0]
    offering = made.offerings_of(nodeset)[0]
    given = render.node_config(made, nodeset, "spot-2", offering)
    path = tmp_path / "node.json"
    path.write_text(given.to_json())
    read = load_node_config({"SPOTBURST_NODE_CONFIG": str(path)})
    assert read == given
    assert (read.node, read.nodeset, read.provider, read.uri) == ("spot-2", "spot", "aws", "file:///shared")


def test_cloud_init_carries_the_node_and_starts_slurmd_last(tmp_path: Path) -> None:
    made = config(tmp_path)
    given = render.node_config(made, made.nodesets[0], "spot-2", made.offerings_of(made.nodesets[0])[0])
    unit = render.agent_service(PROGRAMS, slurm_conf=Path("/etc/slurm/slurm.conf"))
    text = render.cloud_init("spot-2", given, unit)
    assert text.startswith("#cloud-config\n")
    data = yaml.safe_load(text)
    assert data["hostname"] == "spot-2"
    files = {f["path"]: base64.b64decode(f["content"]).decode() for f in data["write_files"]}
    assert json.loads(files["/etc/spotburst/node.json"])["node"] == "spot-2"
    assert files["/etc/systemd/system/spotburst-agent.service"] == unit
    assert data["runcmd"][-1] == ["systemctl", "restart", "slurmd.service"]


def test_the_agent_starts_before_slurmd_so_that_it_stops_after_it() -> None:
    unit = render.agent_service(PROGRAMS, slurm_conf=Path("/etc/slurm/slurm.conf"))
    assert re.search(r"^Before=.*\bslurmd\.service", unit, re.MULTILINE)
    assert not re.search(r"^(PartOf|BindsTo|Requires)=.*slurmd", unit, re.MULTILINE)
    assert "ExecStart=/opt/spotburst/bin/spotburst agent" in unit


def test_the_managers_unit_spares_its_children(tmp_path: Path) -> None:
    unit = render.manager_service(config(tmp_path), PROGRAMS, config_path=Path("/etc/slurm/burst.yaml"))
    assert "ExecStart=/opt/spotburst/bin/spotburst manager --config /etc/slurm/burst.yaml" in unit
    assert "KillMode=process" in unit
    assert "StateDirectory=spotburst\n" in unit


def test_the_managers_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    analyze = need_program("systemd-analyze")
    unit = tmp_path / "spotburst-manager.service"
    programs = render.Programs(*(Path("/bin/true") for _ in range(4)))
    text = render.manager_service(config(tmp_path), programs, config_path=Path("/etc/slurm/burst.yaml"), user="root")
    for broken, right in ((text, True), (text.replace("WatchdogSec=", "WatchdogSec=soon "), False)):
        unit.write_text(broken)
        done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
        assert (unit.name not in done.stderr) == right, done.stderr
    told = re.findall(r"^(Type|WatchdogSec|Restart|StartLimitIntervalSec)=(.*)$", text, re.MULTILINE)
    assert dict(told) == {"Type": "notify", "WatchdogSec": "120", "Restart": "always", "StartLimitIntervalSec": "0"}


def test_slurm_itself_reads_the_configuration(tmp_path: Path) -> None:
    """``scontrol`` without a controller still parses slurm.conf and complains of what it does not know."""
    need_program("slurmd")
    done = subprocess.run(
        ["slurmd", "-V"], capture_output=True, text=True, check=True, env={"PATH": "/usr/sbin:/usr/bin"}
    )
    version = render.parse_version(done.stdout)
    (tmp_path / "slurm.conf").write_text(render.slurm_conf(config(tmp_path), site(tmp_path), version, PROGRAMS))
    (tmp_path / "gres.conf").write_text(render.gres_conf(config(tmp_path)))
    (tmp_path / "cgroup.conf").write_text(render.cgroup_conf(version, embedded=True))
    done = subprocess.run(
        ["scontrol", "show", "hostnames", "spot-[1-2]"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")},
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr, done.stderr
    broken = (tmp_path / "slurm.conf").read_text() + "NoSuchWord=1\n"
    (tmp_path / "slurm.conf").write_text(broken)
    done = subprocess.run(
        ["scontrol", "show", "config"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")},
    )
    assert "NoSuchWord" in done.stderr, "this check would not notice a word that Slurm does not know"
