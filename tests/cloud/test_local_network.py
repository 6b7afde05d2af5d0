"""The embedded cloud's bridge and cables, on real namespaces."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from slurm_plugin.cloud.local import network
from slurm_plugin.cloud.local.cloud import LocalCloud
from slurm_plugin.errors import LocalCloudError
from tests.fixtures.local_stage import booted, local_stage, request

pytestmark = pytest.mark.cluster

TALK = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    with local_stage(tmp_path) as stage:
        yield stage.provider


def lost_notes(cloud: LocalCloud) -> None:
    shutil.rmtree(cloud.yard.folder)
    cloud.destroy()


@pytest.mark.parametrize(
    "end", [lambda cloud: cloud.vanish("a"), LocalCloud.destroy, lost_notes], ids=["vanish", "destroy", "lost-notes"]
)
def test_a_dead_machines_cable_is_gone_whatever_it_had_to_say(
    cloud: LocalCloud, end: Callable[[LocalCloud], None]
) -> None:
    """The kernel keeps a network namespace while a connection in it waits for an answer to its last words, up to two minutes."""
    cloud.launch([request("a")])
    machine = booted(cloud, "a")
    assert machine.process is not None
    cable, gateway = machine.spec["cable"], machine.spec["gateway"]
    with socket.create_server((gateway, 0)) as server:
        enter = ["nsenter", "--target", str(machine.process.pid), "--all", "--wdns=/"]
        command = [*enter, sys.executable, "-c", TALK, gateway, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as talks:
            assert talks.stdout is not None
            assert talks.stdout.readline() == "connected\n"
            peer, _ = server.accept()
            with peer:
                cloud.cut("a")
                end(cloud)
                assert cable not in [link["ifname"] for link in network.links()]


def test_a_machine_is_finished_though_the_cable_of_the_first_attempt_is_still_there(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keeper was killed before the machine started; the kernel removes a dead namespace's cable some time later."""
    monkeypatch.setattr(cloud.yard, "start", lambda instance_id: None)
    cloud.launch([request("a")])
    [machine] = cloud.yard.machines()
    network.ip("link", "add", "name", machine.spec["cable"], "type", "veth")
    monkeypatch.undo()
    cloud.instances()
    booted(cloud, "a")


def test_a_bridge_keeps_its_hardware_address(tmp_path: Path) -> None:
    """Else the other machines reach nobody for some seconds when one comes or goes."""

    def address() -> str:
        (link,) = [link for link in network.links() if link["ifname"] == "sbt-kept"]
        return str(link["address"])

    assert network.make_bridge("sbt-kept", str(tmp_path))
    try:
        network.address_bridge("sbt-kept", IPv4Address("10.99.252.1"), 24)
        before = address()
        # A port whose address is lower than any other.
        network.ip(
            *["link", "add", "name", "sbt-low", "address", "00:00:00:00:00:02", "master", "sbt-kept", "type", "veth"]
        )
        network.ip(*["link", "set", "dev", "sbt-low", "up"])
        assert address() == before
        network.delete_link("sbt-low")
        assert address() == before
    finally:
        network.delete_link("sbt-low")
        network.delete_link("sbt-kept")


def test_another_clusters_bridge_is_refused(cloud: LocalCloud, tmp_path: Path) -> None:
    other = LocalCloud(
        "local",
        cloud.config,
        cluster="x",
        state_dir=tmp_path / "other",
        slurm_conf=tmp_path,
        slurm_root=cloud.slurm_root,
    )
    with pytest.raises(LocalCloudError, match=r"providers\.local\.bridge: .* belongs to the cluster in"):
        other.launch([request("a")])
    config = cloud.config.model_copy(update={"bridge": "sbt-other"})
    other = LocalCloud(
        "local", config, cluster="x", state_dir=tmp_path / "other", slurm_conf=tmp_path, slurm_root=cloud.slurm_root
    )
    network.address_bridge(cloud.config.bridge, cloud.gateway, cloud.subnet.prefixlen)
    with pytest.raises(LocalCloudError, match=r"providers\.local\.subnet: .* is in use by"):
        other.launch([request("a")])
