"""The embedded cloud as a provider, on real namespaces; slurmd is replaced by a program that only waits (tests/cluster has the real one)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cloud.local import host, network
from slurm_plugin.cloud.local.cloud import LocalCloud
from slurm_plugin.cloud.provider import (
    InstanceState,
    Launched,
    Market,
    Offering,
    RefusalKind,
    Refused,
)
from slurm_plugin.config import LocalProvider
from slurm_plugin.errors import CloudUnavailable, LocalCloudError
from tests.fixtures.local_stage import booted, local_stage, request

pytestmark = pytest.mark.cluster

LARGE = Offering("local", "local", "zone-a", "large", Market.ON_DEMAND)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    with local_stage(tmp_path) as stage:
        yield stage.provider


def wait(predicate, seconds: float = 60.0):
    until = time.monotonic() + seconds
    while not (value := predicate()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
    return value


def inside(machine) -> list[int]:
    """Processes of this host that run in the machine's process namespace."""
    assert machine.process is not None
    if not machine.process.alive():
        return []
    own = Path(f"/proc/{machine.process.pid}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "ns" / "pid").readlink() == own:
                found.append(int(entry.name))
    return found


def still_there(pids: list[int]) -> list[int]:
    """Which of them run: neither gone nor dead and waiting to be reaped."""
    return [p for p in pids if (stat := _stat(p)) is not None and stat != "Z"]


def _stat(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def state_of(cloud: LocalCloud, instance_id: str) -> InstanceState:
    return next(i.state for i in cloud.instances() if i.instance_id == instance_id)


def test_two_clouds_with_the_same_names_do_not_meet(cloud: LocalCloud, tmp_path: Path) -> None:
    """Their machines' cables have different names, though cluster, cloud and launch id are the same."""
    other = LocalCloud(
        cloud.name, cloud.config, cluster=cloud.cluster, state_dir=tmp_path / "other", slurm_conf=cloud.slurm_conf
    )
    assert cloud._instance_id("one") != other._instance_id("one")
    assert cloud._instance_id("one") == cloud._instance_id("one")


def test_the_same_launch_id_makes_one_machine(cloud: LocalCloud) -> None:
    first, twin = cloud.launch([request("a"), request("a")])
    [again] = cloud.launch([request("a")])
    assert isinstance(first, Launched)
    assert first == twin == again
    machine = booted(cloud, "a")
    assert [(i.node, i.state, i.launch_id, i.billed) for i in cloud.instances()] == [
        ("a", InstanceState.RUNNING, "a", True)
    ]
    processes = inside(machine)
    assert len(processes) >= 2
    cloud.terminate([first.instance_id])
    assert still_there(processes) == []
    assert cloud.launch([request("a")]) == [first], "an ended machine's launch id is spent"
    [left] = cloud.instances()
    assert (left.state, left.billed) == (InstanceState.GONE, False)


def test_a_machine_noted_but_not_started_is_finished_by_the_next_listing(cloud: LocalCloud, monkeypatch) -> None:
    monkeypatch.setattr(cloud.yard, "start", lambda instance_id: None)
    cloud.launch([request("a")])
    assert [i.state for i in cloud.instances()] == [InstanceState.PENDING]
    monkeypatch.undo()
    cloud.instances()
    booted(cloud, "a")


def test_a_machine_noted_but_not_started_can_be_terminated(cloud: LocalCloud, monkeypatch) -> None:
    monkeypatch.setattr(cloud.yard, "start", lambda instance_id: None)
    [launched] = cloud.launch([request("a")])
    cloud.terminate([launched.instance_id])
    monkeypatch.undo()
    assert [i.state for i in cloud.instances()] == [InstanceState.GONE]


LAUNCHER = """
import sys
from pathlib import Path
from slurm_plugin.cloud.local.cloud import LocalCloud
from slurm_plugin.cloud.provider import *
from slurm_plugin.config import LocalProvider
root, bridge, subnet, launch_id = sys.argv[1:]
cloud = LocalCloud("local", LocalProvider(type="local", subnet=subnet, bridge=bridge), cluster="test", state_dir=Path(root) / "state",
                   slurm_conf=Path(root) / "slurm.conf", slurm_root=Path(root) / "slurm")
print("ready", flush=True)
cloud.launch([LaunchRequest(launch_id, launch_id, "set", Offering("local", "local", "zone-a", "small", Market.SPOT))])
"""


def test_launches_killed_anywhere_leave_one_machine_or_none(cloud: LocalCloud, tmp_path: Path) -> None:
    """The launching process and the machine's keeper are killed at random moments; the next pass ends with exactly one machine."""
    rng = random.Random(7)
    for round_ in range(12):
        node = f"n{round_}"
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(tmp_path), cloud.config.bridge, cloud.config.subnet, node],
            stdout=subprocess.PIPE,
        )
        assert launcher.stdout is not None
        launcher.stdout.readline()
        time.sleep(rng.uniform(0, 0.12))
        launcher.kill()
        for stray in cloud.yard.strays():
            machine_inits = {m.process.pid for m in cloud.yard.machines() if m.process is not None}
            if stray.pid not in machine_inits:
                stray.send(signal.SIGKILL)
        launcher.wait()
        launcher.stdout.close()
        assert isinstance(cloud.launch([request(node)])[0], Launched)

        def settled(node: str = node) -> bool:
            living = [i for i in cloud.instances() if i.node == node and i.billed]
            return len(living) == 1 and living[0].state is InstanceState.RUNNING

        wait(settled)
        machine = booted(cloud, node)

        def of_machine(pid: int, machine=machine) -> bool:
            try:
                return machine.instance_id in Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                return False  # it has just ended

        def processes() -> list[int]:
            return [s.pid for s in cloud.yard.strays() if of_machine(s.pid)]

        assert machine.process.pid in processes()
        wait(lambda: len(processes()) <= 2)  # the machine and at most one keeper
    cables = [link["ifname"] for link in network.links() if link["ifname"].startswith("sbv")]
    mine = {m.spec["cable"] for m in cloud.yard.machines() if not m.gone}
    assert mine <= set(cables)


def test_a_machine_outlives_its_keeper_and_its_end_is_seen(cloud: LocalCloud) -> None:
    [launched] = cloud.launch([request("a")])
    machine = booted(cloud, "a")
    for stray in cloud.yard.strays():
        if stray.pid != machine.process.pid:
            stray.send(signal.SIGKILL)
    assert state_of(cloud, launched.instance_id) is InstanceState.RUNNING
    assert machine.process.alive()
    processes = inside(machine)
    cloud.vanish("a")
    assert still_there(processes) == []
    assert state_of(cloud, launched.instance_id) is InstanceState.GONE


def test_a_gang_comes_whole_or_not_at_all(cloud: LocalCloud) -> None:
    cloud.set_capacity("zone-a", "small", Market.SPOT, 2)
    answers = cloud.launch(
        [request("a", gang="g"), request("b", gang="g"), request("c", gang="g"), request("d", offering=LARGE)]
    )
    assert [type(a) for a in answers] == [Refused, Refused, Refused, Launched]
    assert {(a.kind, a.code) for a in answers if isinstance(a, Refused)} == {
        (RefusalKind.NO_CAPACITY, "InsufficientInstanceCapacity")
    }
    assert [i.node for i in cloud.instances()] == ["d"]
    answers = cloud.launch([request("a", gang="g"), request("b", gang="g")])
    assert [type(a) for a in answers] == [Launched, Launched]
    assert isinstance(cloud.launch([request("c")])[0], Refused)
    cloud.terminate([a.instance_id for a in answers if isinstance(a, Launched)])
    assert isinstance(cloud.launch([request("c")])[0], Launched), "an ended machine gives its capacity back"


def test_refusals_ordered_come_in_the_clouds_words_and_once(cloud: LocalCloud) -> None:
    cloud.refuse(RefusalKind.TRY_LATER)
    cloud.refuse(RefusalKind.QUOTA, pool="zone-a/large/on-demand", times=-1)
    [answer] = cloud.launch([request("a")])
    assert isinstance(answer, Refused)
    assert (answer.kind, answer.code) == (RefusalKind.TRY_LATER, "RequestLimitExceeded")
    assert isinstance(cloud.launch([request("a")])[0], Launched)
    for _ in range(2):
        [answer] = cloud.launch([request("b", offering=LARGE)])
        assert isinstance(answer, Refused)
        assert answer.kind is RefusalKind.QUOTA


def test_one_bad_name_spoils_only_itself(cloud: LocalCloud) -> None:
    bad, good = cloud.launch([request("x", node="../etc"), request("a")])
    assert isinstance(bad, Refused)
    assert bad.kind is RefusalKind.MISTAKE
    assert isinstance(good, Launched)


def test_an_unreachable_api_tells_nothing(cloud: LocalCloud) -> None:
    cloud.set_reachable(False)
    for call in (cloud.instances, lambda: cloud.launch([request("a")]), lambda: cloud.terminate(["i-0"])):
        with pytest.raises(CloudUnavailable):
            call()
    cloud.set_reachable(True)
    assert cloud.instances() == []


def test_terminate_passes_over_unknown_and_ended_ones(cloud: LocalCloud) -> None:
    [launched] = cloud.launch([request("a")])
    cloud.terminate(["i-00000000000000000", "../../etc", launched.instance_id, launched.instance_id])
    cloud.terminate([launched.instance_id])
    assert state_of(cloud, launched.instance_id) is InstanceState.GONE


def test_a_terminated_machine_can_linger(cloud: LocalCloud) -> None:
    [launched] = cloud.launch([request("a")])
    machine = booted(cloud, "a")
    cloud.set_linger(3600.0)
    cloud.terminate([launched.instance_id])
    assert state_of(cloud, launched.instance_id) is InstanceState.STOPPING
    assert machine.process.alive()
    plan = cloud.find("a").control["terminate"]
    assert plan["at"] == plan["asked"] + 3600.0
    cloud.terminate([launched.instance_id])
    assert cloud.find("a").control["terminate"] == plan, "asking again must not put the end off"
    cloud.yard.steer(machine, lambda control: {**control, "terminate": {**plan, "at": time.time() + 0.5}})
    assert machine.process.wait(60), "it ends by itself"


def test_a_reclaim_ends_the_machine_by_itself(cloud: LocalCloud) -> None:
    [launched] = cloud.launch([request("a")])
    machine = booted(cloud, "a")
    told = cloud.reclaim("a", 3600.0)
    assert told.state is InstanceState.RECLAIMING
    assert told.notice_id is not None
    assert told.deadline is not None
    assert machine.process.alive()
    soon = cloud.reclaim("a", 1.0)
    assert soon.deadline is not None
    assert machine.process.wait(60)
    assert time.time() >= soon.deadline
    assert state_of(cloud, launched.instance_id) is InstanceState.GONE


def test_a_withdrawn_reclaim_gets_a_new_id_the_next_time(cloud: LocalCloud) -> None:
    cloud.launch([request("a")])
    booted(cloud, "a")
    first = cloud.reclaim("a", 100)
    assert cloud.withdraw("a").state is InstanceState.RUNNING
    assert cloud.reclaim("a", 100).notice_id != first.notice_id


def test_a_new_machine_of_a_node_has_another_address_and_is_the_one_meant(cloud: LocalCloud) -> None:
    cloud.launch([request("one", node="a")])
    booted(cloud, "a")
    cloud.cut("a")
    [second] = cloud.launch([request("two", node="a")])
    wait(lambda: cloud.find(second.instance_id).booted)
    old, new = cloud.instances()
    assert old.address != new.address
    assert cloud.find("a").instance_id == second.instance_id
    with pytest.raises(LocalCloudError, match="no running machine"):
        cloud.find("b")


def test_a_machine_holds_nothing_of_its_launcher(cloud: LocalCloud, tmp_path: Path) -> None:
    """No descriptors, no session, no terminal: the manager may die or be restarted."""
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)
    cloud.launch([request("a")])
    machine = booted(cloud, "a")
    for pid in inside(machine):
        links = []
        with contextlib.suppress(OSError):  # what has just ended holds nothing
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    links.append(str(fd.readlink()))
        assert str(tmp_path / "secret") not in links
        assert not any(link.endswith("/lock") for link in links)
    assert os.getsid(machine.process.pid) != os.getsid(0)
    secret.close()


def test_destroy_finds_machines_whose_notes_are_lost(cloud: LocalCloud) -> None:
    cloud.launch([request("a")])
    machine = booted(cloud, "a")
    processes = inside(machine)
    shutil.rmtree(cloud.yard.folder)
    cloud.destroy()
    assert still_there(processes) == []
    assert network.bridge_owner(cloud.config.bridge) is None
    cloud.destroy()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(LocalCloudError, match="can't see it there"):
        LocalCloud("local", LocalProvider(type="local"), cluster="x", state_dir=Path("/run/x"), slurm_conf=tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LocalCloudError, match="needs root"):
        host.require(("ip",))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(host, "find_command", lambda name, root=None: None)
    with pytest.raises(LocalCloudError, match="apt-get install munge slurmctld"):
        host.require(("munged", "slurmctld"))
