"""A node of the embedded cloud is a Slurm node like any other, and fails like one. Without the manager: the tests launch by hand."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cloud.local import network
from slurm_plugin.cloud.local.cloud import LocalCloud
from slurm_plugin.cloud.local.state import locked
from slurm_plugin.cloud.provider import InstanceState, Launched, LaunchRequest
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.local_cluster.sweep import sweep
from tests.cluster.conftest import SWEEPING
from tests.cluster.saved import saved
from tests.fixtures.private_slurm import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

AWS = r"""
token() { curl -sS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token; }
metadata() { curl -sS -o /dev/stdout -w ' %{http_code}\n' -H "X-aws-ec2-metadata-token: $(token)" "http://169.254.169.254/latest/meta-data/$1"; }
"""


@pytest.fixture(scope="module")
def cluster(make_module_cluster) -> Iterator[LocalCluster]:
    yield make_module_cluster(3, manager=False, suspend_timeout=1)


@pytest.fixture
def cloud(cluster: LocalCluster) -> LocalCloud:
    return cluster.cloud()


def boot(cluster: LocalCluster, *nodes: str) -> list[str]:
    """What the manager does for a node that a job needs. Returns instance ids."""
    offering = cluster.config.offerings_of(cluster.config.nodesets[0])[0]
    names = ",".join(nodes)
    cluster.run("scontrol", "update", f"nodename={names}", "state=power_up")
    # 22.05 forgets a machine that registers before its power thread has taken up the request.
    cluster.wait_for(
        lambda: all("POWERING_UP" in f for f in flags(cluster, *nodes)), 60, "Slurm to ask for the machines"
    )
    boots = time.time_ns()
    answers = cluster.cloud().launch([LaunchRequest(f"{n}-{boots}", n, "spot", offering) for n in nodes])
    assert all(isinstance(a, Launched) for a in answers)
    cluster.wait_for(lambda: states(cluster, *nodes) == {"idle"}, 120, f"{names} to register")
    return [a.instance_id for a in answers if isinstance(a, Launched)]


def states(cluster: LocalCluster, *nodes: str) -> set[str]:
    return set(cluster.run("sinfo", "-h", "-N", "-o", "%t", "-n", ",".join(nodes)).split())


def flags(cluster: LocalCluster, *nodes: str) -> list[frozenset[str]]:
    return [n.states for n in cluster.client().nodes() if n.name in nodes]


def release(cluster: LocalCluster, *nodes: str) -> None:
    """Back to powered down, whatever became of the nodes."""
    cloud = cluster.cloud()
    cloud.terminate([i.instance_id for i in cloud.instances() if i.node in nodes])
    cluster.run("scancel", "--user=root")
    # Down first: a job that was on a machine that is gone would otherwise wait for it for ever.
    cluster.run("scontrol", "update", f"nodename={','.join(nodes)}", "state=down", "reason=gone")
    cluster.run("scontrol", "update", f"nodename={','.join(nodes)}", "state=power_down_force")
    cluster.wait_for(lambda: states(cluster, *nodes) == {"idle~"}, 120, "power down")


def job_state(cluster: LocalCluster, job: str) -> str:
    return cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def finished(cluster: LocalCluster, job: str) -> str:
    cluster.wait_for(lambda: job_state(cluster, job) in ("COMPLETED", "FAILED", "CANCELLED"), 180, f"job {job} to end")
    return cluster.output(job)


def test_a_job_runs_on_two_booted_nodes(cluster: LocalCluster) -> None:
    boot(cluster, "spot-1", "spot-2")
    script = f"""
    {AWS}
    echo "host $(hostname) gpu $CUDA_VISIBLE_DEVICES"
    srun sh -c 'echo "step $(hostname) gpu $CUDA_VISIBLE_DEVICES"'
    srun -N1 -n1 -w spot-2 sh -c 'echo "other $(hostname) $(getent hosts spot-1 | cut -d" " -f1)"'
    echo "json $(tr -d '\\n' < /run/spotburst/node.json)"
    echo "init $(cat /proc/1/comm) $(ls /proc | grep -c '^[0-9]')"
    metadata instance-id | sed 's/^/id /'
    metadata spot/instance-action | sed 's/^/action /'
    curl -sS -o /dev/null -w 'bare %{{http_code}}\\n' http://169.254.169.254/latest/meta-data/instance-id
    """
    job = cluster.submit(script, "-N2", "-n2", "--gres=gpu:1")
    lines = finished(cluster, job).splitlines()
    assert "host spot-1 gpu 0" in lines
    assert {"step spot-1 gpu 0", "step spot-2 gpu 0"} <= set(lines)
    assert f"other spot-2 {cluster.cloud().find('spot-1').spec['address']}" in lines, (
        "nodes don't know each other's names"
    )
    node = json.loads(next(line for line in lines if line.startswith("json "))[5:])
    assert (node["node"], node["nodeset"], node["provider"]) == ("spot-1", "spot", "aws")
    processes = int(next(line for line in lines if line.startswith("init ")).split()[-1])
    assert processes < 30, "a machine must see its own processes only"
    instance = next(i for i in cluster.cloud().instances() if i.node == "spot-1" and i.billed)
    assert f"id {instance.instance_id} 200" in lines
    assert any(line.startswith("action ") and line.endswith(" 404") for line in lines)
    assert "bare 401" in lines
    release(cluster, "spot-1", "spot-2")


def test_check_on_a_node_names_what_is_broken(cluster: LocalCluster, cloud: LocalCloud) -> None:
    """Beside what is well, an agent that has ended and a metadata service that is not there."""
    [instance_id] = boot(cluster, "spot-3")
    machine = cloud.find(instance_id)
    assert machine.process is not None
    enter = ("nsenter", "--target", str(machine.process.pid), "--all", "--wdns=/")
    check = (str(Path(sys.executable).parent / "spotburst"), "check", "--role", "node", "--json")

    def checked() -> dict[str, tuple[str, str]]:
        """State and fix by what was looked at."""
        found = json.loads(cluster.run(*enter, *check, check=False))
        return {one["what"]: (one["state"], one["fix"]) for one in found}

    well = {"node.json": "ok", "agent": "ok", "notices": "ok"}
    # The agent is started before slurmd, and may be ready after it.
    cluster.wait_for(lambda: {what: state for what, (state, _) in checked().items()} == well, 60, "all to be well")
    agent = (*enter, "pgrep", "-P", "1", "-f", "job_wrapper.agent")
    # Told to end it would look once more, and say so.
    cluster.run(*enter, "kill", "-KILL", cluster.run(*agent).strip())
    cluster.wait_for(lambda: not cluster.run(*agent, check=False).strip(), 60, "the agent's end")
    cluster.run(*enter, "touch", "-d", "-1 minute", "/run/spotburst/agent.alive")
    cluster.run(*enter, "ip", "address", "del", "169.254.169.254/32", "dev", "lo")
    broken = checked()
    assert broken["node.json"][0] == "ok"
    assert broken["agent"][0] == "fault"
    assert "spotburst" in broken["agent"][1]
    assert broken["notices"][0] == "fault"
    assert "metadata service" in broken["notices"][1]
    release(cluster, "spot-3")


def test_srun_from_the_login_node(cluster: LocalCluster) -> None:
    boot(cluster, "spot-1")
    assert "spot-1" in cluster.run("srun", "-w", "spot-1", "hostname").splitlines()
    release(cluster, "spot-1")


def test_a_reclaim_is_told_in_the_job_and_takes_the_machine(cluster: LocalCluster, cloud: LocalCloud) -> None:
    [instance_id] = boot(cluster, "spot-1")
    job = cluster.submit(
        f"{AWS}\nfor i in $(seq 600); do metadata spot/instance-action; sleep 0.2; done", "-w", "spot-1"
    )
    cluster.wait_for(lambda: "404" in cluster.output(job), 60, "the job's first look")
    deadline = cloud.reclaim("spot-1", 20).deadline
    assert deadline is not None
    cluster.wait_for(lambda: '"terminate"' in cluster.output(job), 20, "the notice in the job")
    told = next(line for line in cluster.output(job).splitlines() if "terminate" in line)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(deadline)))
    assert json.loads(told.removesuffix(" 200")) == {"action": "terminate", "time": stamp}
    machine = cloud.find(instance_id)
    assert machine.process is not None
    assert machine.process.wait(80), "the machine outlived its deadline though nobody touched it"
    assert time.time() >= deadline
    assert [i.state for i in cloud.instances() if i.instance_id == instance_id] == [InstanceState.GONE]
    release(cluster, "spot-1")


def test_a_withdrawn_notice_leaves_the_machine(cluster: LocalCluster, cloud: LocalCloud) -> None:
    [instance_id] = boot(cluster, "spot-1")
    cloud.reclaim("spot-1", 18)
    cloud.withdraw("spot-1")
    machine = cloud.find(instance_id)
    assert machine.process is not None
    assert not machine.process.wait(19)
    release(cluster, "spot-1")


def test_a_cut_off_node_works_on_and_comes_back(cluster: LocalCluster, cloud: LocalCloud, tmp_path: Path) -> None:
    boot(cluster, "spot-1")
    marks = tmp_path / "marks"
    job = cluster.submit(f"while true; do date +%s%N >> {marks}; sleep 0.1; done", "-w", "spot-1")
    cluster.wait_for(marks.exists, 90, "the job to run")
    address = cloud.find("spot-1").spec["address"]
    assert reaches(address)
    cloud.cut("spot-1")
    assert not reaches(address)
    before = marks.stat().st_size
    cluster.wait_for(lambda: marks.stat().st_size > before + 40, 60, "the job to go on while cut off")
    cloud.heal("spot-1")
    cluster.wait_for(lambda: reaches(address), 60, "the healed node")
    cluster.run("scancel", job)
    finished(cluster, job)
    release(cluster, "spot-1")


def test_a_vanished_node_is_gone_at_once(cluster: LocalCluster, cloud: LocalCloud, tmp_path: Path) -> None:
    boot(cluster, "spot-1")
    marks = tmp_path / "marks"
    cluster.submit(f"while true; do date +%s%N >> {marks}; sleep 0.05; done", "-w", "spot-1")
    cluster.wait_for(marks.exists, 90, "the job to run")
    cloud.vanish("spot-1")
    size = marks.stat().st_size
    time.sleep(0.5)
    assert marks.stat().st_size == size, "a process of the vanished machine still writes"
    release(cluster, "spot-1")


def test_slurmctld_comes_back_with_its_jobs(cluster: LocalCluster) -> None:
    boot(cluster, "spot-1")
    job = cluster.submit("sleep 300", "-w", "spot-1")
    cluster.wait_for(lambda: job_state(cluster, job) == "RUNNING", 90, "the job to run")
    before = saved(cluster)
    # Slurm saves its state some seconds after a change, and what it had not saved is lost: a node's address, too.
    cluster.run("scontrol", "update", f"jobid={job}", "comment=x")
    cluster.run("scontrol", "update", "nodename=spot-1", "comment=x")

    def is_saved() -> bool:
        now = saved(cluster)
        return bool(now) and all(now[name] != before.get(name) for name in now)

    cluster.wait_for(is_saved, 60, "the saved state")
    cluster.kill_slurmctld()
    cluster.start_slurmctld()
    cluster.wait_for(lambda: job_state(cluster, job) == "RUNNING", 90, "the job after the restart")
    cluster.run("scancel", job)
    finished(cluster, job)
    release(cluster, "spot-1")


def test_a_cluster_leaves_no_trace(make_cluster, tmp_path: Path) -> None:
    before = traces(tmp_path)
    made = make_cluster(2, manager=False)
    boot(made, "spot-1", "spot-2")
    made.submit("sleep 300", "-w", "spot-1")
    made.cloud().cut("spot-2")
    cables = cables_of(tmp_path, 2)
    made.stop()
    all_goes(tmp_path, before, cables)


OWNER = """
import sys, time
from pathlib import Path
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.cloud.provider import LaunchRequest
with LocalCluster(Path(sys.argv[1]), default_settings(1), manager=False) as cluster:
    cluster.cloud().launch([LaunchRequest("a", "spot-1", "spot", cluster.config.offerings_of(cluster.config.nodesets[0])[0])])
    print(cluster.submit("hostname"), flush=True)
    while True:  # short sleeps: a signal that comes just before one is acted on after it
        time.sleep(0.1)
"""


def test_what_a_killed_owner_left_is_swept(able: None, tmp_path: Path) -> None:
    """In a folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("long-" * 20) / "cluster"
    before = traces(tmp_path)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "1\n"
    with locked(SWEEPING):
        assert folder not in sweep(), "its owner lives"
    with locked(SWEEPING):
        owner.kill()
        owner.wait()
        owner.stdout.close()
        sockets = json.loads((folder / "run" / "sockets.json").read_text())["folder"]
        assert Path(sockets).exists()
        cables = cables_of(tmp_path, 1)
        assert folder in sweep()
    assert not Path(sockets).exists()
    with LocalCluster(folder, default_settings(1), manager=False) as again:
        again.wait_for(lambda: traces(tmp_path) - before, 60, "the new cluster")
        assert int(again.submit("hostname")) > 1, "a job id is used again, and with it a run's name"
        again.stop()
    all_goes(tmp_path, before, cables)


def test_an_owner_that_is_asked_to_end_takes_all_down(able: None, tmp_path: Path) -> None:
    before = traces(tmp_path)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    owner.stdout.readline()
    cables = cables_of(tmp_path, 1)
    owner.terminate()
    try:
        assert owner.wait(120) == 128 + signal.SIGTERM
        all_goes(tmp_path, before, cables)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        with locked(SWEEPING):
            sweep()


def reaches(address: str) -> bool:
    """Whether the node's slurmd accepts a connection."""
    try:
        socket.create_connection((address, 6818), timeout=1.0).close()
    except OSError:
        return False
    return True


def traces(folder: Path) -> set[str]:
    """What a cluster could leave on the host: bridges, mounts and processes that name its folder."""
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    found = {f"bridge {link['ifname']}" for link in links if str(folder) in link.get("ifalias", "")}
    found |= {f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command and "pytest" not in command.split(str(folder))[0]:
            found.add(f"process {entry.name}: {command}")
    return found


def cables_of(folder: Path, count: int) -> set[str]:
    """Those of the cluster in the folder, once it has so many: other clusters come and go meanwhile, with cables of their own."""

    def plugged_in() -> set[str]:
        bridges = {name for name, owner in network.owned_bridges() if str(folder) in owner}
        found = {link["ifname"] for link in network.links() if link.get("master") in bridges}
        return found if len(found) == count else set()

    wait_for(lambda: bool(plugged_in()), f"{count} machines on the network")
    return plugged_in()


def all_goes(folder: Path, before: set[str], cables: set[str]) -> None:
    """Nothing stays; what has been killed may have to wait for a processor before it ends."""
    until = time.monotonic() + 60
    while left := (traces(folder) - before) | (cables & {link["ifname"] for link in network.links()}):
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.1)
