"""Two controllers with one StateSaveLocation and one state_dir: the second takes over, and its manager acts in the place of the first's."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.render import Programs
from tests.cluster.training import Training, assert_no_commit_lost
from tests.unit.manager.listener import Listener

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SECOND = "ctl-b"


class TwoControllers(LocalCluster):
    """The second has a name and an address of its own on the cluster's bridge; all files are shared."""

    def _prepare(self) -> None:
        super()._prepare()
        text = self.slurm_conf.read_text()
        line, address = re.search(r"^SlurmctldHost=\S+\((\S+)\)$", text, re.MULTILINE).group(0, 1)  # type: ignore[union-attr]
        bridge = str(self.config.providers["local"].bridge)  # type: ignore[union-attr]
        self.namespace, mine = f"ctl-{bridge}", f"{address.rpartition('.')[0]}.250"
        for words in (
            ("netns", "add", self.namespace),
            ("link", "add", f"c{bridge}", "type", "veth", "peer", "name", "ctl", "netns", self.namespace),
            ("link", "set", f"c{bridge}", "master", bridge, "up"),
            ("-n", self.namespace, "address", "add", f"{mine}/24", "dev", "ctl"),
            ("-n", self.namespace, "link", "set", "ctl", "up"),
            ("-n", self.namespace, "link", "set", "lo", "up"),
        ):
            subprocess.run(["ip", *words], check=True)
        both = text.replace(line, f"{line}\nSlurmctldHost={SECOND}({mine})\nSlurmctldTimeout=10")
        self.slurm_conf.write_text(both)
        # slurmctld ends whoever its file of that name tells of: the one thing that two machines don't share.
        own = both.replace("/run/slurmctld.pid", f"/run/{SECOND}.pid").replace("/slurmctld.log", f"/{SECOND}.log")
        (self.etc / "second.conf").write_text(own)

    def start_second(self, name: str, *command: str, network: bool = False) -> None:
        """On the second controller's machine, as far as a name, an address and a slurm.conf make one."""
        inside = f'mount --bind {self.etc}/second.conf {self.slurm_conf}; hostname {SECOND}; exec "$@"'
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}"] if network else []
        whole = [*enter, "unshare", "--uts", "--mount", "sh", "-c", inside, "sh", *command]
        self.daemons.start(name, whole, self.environment, self.log / f"{name}.out")

    def stop(self) -> None:
        for name in (f"manager-{SECOND}", f"slurmctld-{SECOND}"):
            self.daemons.stop(name)
        super().stop()
        if hasattr(self, "namespace"):
            subprocess.run(["ip", "netns", "delete", self.namespace], check=False, capture_output=True)

    def said(self, name: str) -> list[dict[str, object]]:
        """What a manager has logged."""
        path = self.log / name
        # Not the line that is being written.
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture
def cluster(able: None, tmp_path: Path) -> Iterator[TwoControllers]:
    plan = default_settings(3)
    plan["checkpoints"] = {"interval": "1s"}
    made = TwoControllers(tmp_path / "c", plan)
    with made:
        yield made


def test_the_second_controllers_manager_takes_over_and_launches_nothing_twice(
    cluster: TwoControllers, tmp_path: Path
) -> None:
    first, second = "manager.log", f"manager-{SECOND}.out"
    manager = [str(Programs.beside_python().spotburst), "manager", "--config", str(cluster.config_path)]
    slurmctld = cluster._command("slurmctld")
    cluster.start_second(f"slurmctld-{SECOND}", slurmctld, "-D", "-f", str(cluster.slurm_conf), network=True)
    listener = Listener(tmp_path / "notify")
    cluster.start_second(f"manager-{SECOND}", "env", f"NOTIFY_SOCKET={tmp_path}/notify", *manager)
    told = listener.until(lambda words: any("slurmctld acts on" in word for word in words), 120)
    assert "READY=1" in told, "a machine that stands by has booted"

    job = Training(cluster, 100_000, 0.05, tmp_path / "out").submit()
    job.until_step(1)
    assert not [line for line in cluster.said(second) if line["event"] == "manager started"]

    cluster.run("scontrol", "takeover", timeout=90)
    steps_down = cluster.wait_for(
        lambda: [line for line in cluster.said(first) if line["event"] == "this manager stops acting"],
        120,
        "stepping down",
    )
    assert f"acts on {SECOND}" in str(steps_down[0]["why"])
    taken_over(cluster, second)
    # Slurm's own word for its state is with the second, too: the notice meets a cluster that has just moved.
    notice(cluster, job, epoch=2)

    # The first comes back, takes control again, and its manager waits for the lock no longer than for the other to let go.
    cluster.daemons.stop("slurmctld")
    cluster.start_slurmctld()
    # (Its log is told from that of its first life.)
    (cluster.log / first).rename(cluster.log / "manager-before.log")
    cluster.start_manager()
    taken_over(cluster, first)
    cluster.wait_for(lambda: not cluster.daemons.alive(f"manager-{SECOND}"), 120, "the second to step down")
    assert cluster.said(second)[-1]["event"] == "manager stopped"

    # The first machine dies, slurmctld and manager at once; nobody says so to the second.
    (cluster.log / second).rename(cluster.log / "second-before.log")
    cluster.start_second(f"manager-{SECOND}", *manager)
    cluster.kill_manager(signal.SIGKILL)
    cluster.kill_slurmctld(signal.SIGKILL)
    taken_over(cluster, second)
    assert len(launched(cluster)) == 2, "whoever took over found what there was"
    assert_no_commit_lost(job.entries())
    cluster.run("scancel", job.job)


def taken_over(cluster: TwoControllers, log: str) -> None:
    cluster.wait_for(
        lambda: [line for line in cluster.said(log) if line["event"] == "manager started"],
        180,
        f"the manager of {log} to act",
    )


def notice(cluster: TwoControllers, job: Training, epoch: int) -> None:
    """The job's node is reclaimed: one machine is bought for it, once, and the job goes on there."""
    before = launched(cluster)
    node = cluster.wait_for(job.node, 30, "the job's node")
    cluster.cloud().reclaim(node)
    job.until_epoch(epoch)
    cluster.wait_for(lambda: job.node() not in ("", node), 120, "the job to run on another node")
    new = launched(cluster) - before
    assert len(new) == 1, f"one replacement: {new}"
    # By the cloud's own account, too: of machines of one node never two.
    live = [i.node for i in cluster.cloud().instances() if i.state is not InstanceState.GONE]
    assert len(live) == len(set(live))
    assert {i.launch_id for i in cluster.cloud().instances()} >= new


def launched(cluster: TwoControllers) -> set[str]:
    """Launch ids of all machines that the cloud has or had and still shows."""
    return {i.launch_id for i in cluster.cloud().instances()}
