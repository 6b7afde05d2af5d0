"""What several clusters on one host must not share: network and port."""

from __future__ import annotations

import socket
from ipaddress import IPv4Network
from pathlib import Path

from slurm_plugin.cloud.local import network
from slurm_plugin.errors import LocalCloudError


def reserve_network(state_dir: Path) -> tuple[str, IPv4Network]:
    """A bridge and a subnet that nobody has: making the bridge reserves both."""
    for number in range(256):
        subnet = IPv4Network(f"10.77.{number}.0/24")
        bridge = f"sb{number}"
        if network.subnet_in_use(subnet, network.links()):
            continue
        if network.make_bridge(bridge, str(state_dir)):
            return bridge, subnet
    raise LocalCloudError("all of 10.77.0.0/16 is in use on this host: no subnet left for another private cluster")


def free_port(first: int) -> int:
    """slurmctld listens on every address of the host (its option to bind to one takes that of the host's name), so ports differ too."""
    for port in range(first, 65536, 256):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise LocalCloudError("no port is free for slurmctld")
