"""Bridge and cables of the embedded cloud, through the ``ip`` command. Standard library only.

A machine's cable is a veth pair whose one end lies in the machine: the kernel deletes both ends with the machine's network namespace. The
bridge carries an alias that says whose it is.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

ALIAS = "spotburst "


def ip(*words: str, stdin: str | None = None) -> str:
    """Run ``ip``; raises ``OSError`` with its own words."""
    return _run("ip", *words, stdin=stdin)


def _run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(list(command), input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def links() -> list[dict[str, Any]]:
    """All network interfaces of this host with their addresses, as ``ip -json`` tells them."""
    found: list[dict[str, Any]] = json.loads(ip("-json", "address", "show") or "[]")
    return found


def subnet_in_use(subnet: IPv4Network, interfaces: Iterable[dict[str, Any]], *, but: str = "") -> str | None:
    """The interface, other than ``but``, whose addresses overlap the subnet."""
    for link in interfaces:
        if link.get("ifname") == but:
            continue
        for address in link.get("addr_info", []):
            if address.get("family") != "inet":
                continue
            if IPv4Interface(f"{address['local']}/{address['prefixlen']}").network.overlaps(subnet):
                return str(link["ifname"])
    return None


def make_bridge(bridge: str, owner: str) -> bool:
    """Create the bridge; False when there is one of that name. Creation is atomic, so it also reserves the name."""
    try:
        ip("link", "add", "name", bridge, "type", "bridge")
    except OSError as error:
        if "File exists" in str(error):
            return False
        raise
    ip("link", "set", "dev", bridge, "alias", ALIAS + owner_name(owner))
    return True


def owner_name(owner: str) -> str:
    """As much of it as an alias holds: the kernel keeps at most 255 bytes."""
    return owner.encode()[: 255 - len(ALIAS)].decode(errors="ignore")


def address_bridge(bridge: str, address: IPv4Address, prefix: int) -> None:
    """Give the bridge its addresses and switch it on. Any number of times.

    Its hardware address, too: without one of its own a bridge takes its ports' lowest. That is another one whenever a machine comes or goes,
    and the others, who still send to the last one, reach nobody here for some seconds (Linux 6: br_stp_recalculate_bridge_id).
    """
    ip("link", "set", "dev", bridge, "address", hardware_address(address))
    ip("address", "replace", f"{address}/{prefix}", "dev", bridge)
    ip("link", "set", "dev", bridge, "up")


def bridge_owner(bridge: str) -> str | None:
    """Whose bridge it is; None where there is no interface of that name; "" for one that is not of ours."""
    return _aliases().get(bridge)


def owned_bridges() -> list[tuple[str, str]]:
    """All bridges that spotburst made on this host, each with the state folder that it was made for."""
    return [(name, owner) for name, owner in _aliases().items() if owner]


def _aliases() -> dict[str, str]:
    found = {}
    for link in json.loads(ip("-json", "link", "show") or "[]"):
        alias = str(link.get("ifalias", ""))
        found[str(link["ifname"])] = alias.removeprefix(ALIAS) if alias.startswith(ALIAS) else ""
    return found


def delete_link(name: str) -> None:
    """Delete an interface; none is no error."""
    try:
        ip("link", "delete", "dev", name)
    except OSError as error:
        if "Cannot find device" not in str(error):
            raise


def delete_bridge(bridge: str) -> None:
    """Delete it with the cables that hang on it; none is no error."""
    with contextlib.suppress(OSError):
        for port in json.loads(ip("-json", "link", "show", "master", bridge) or "[]"):
            pull_out(str(port["ifname"]))
    delete_link(bridge)


def hardware_address(address: IPv4Address) -> str:
    """Derived from the IP address, so that an address used again is never hidden by what others remember of it."""
    return "02:5b:" + ":".join(f"{byte:02x}" for byte in address.packed)


def plug_in(cable: str, bridge: str, pid: int, address: IPv4Address) -> None:
    """Lay a cable from the bridge into the network namespace of ``pid`` (as the caller's /proc has it)."""
    # Not "netns PID": iproute2 of Debian 12 has the kernel look for that process, Debian 13's looks in /proc itself.
    ip(
        *("link", "add", "name", cable, "type", "veth"),
        *("peer", "name", "eth0", "address", hardware_address(address), "netns", f"/proc/{pid}/ns/net"),
    )
    ip("link", "set", "dev", cable, "master", bridge, "up")


def pull_out(cable: str) -> None:
    """Remove the cable of a machine that is dead or was not finished; none is no error.

    Its namespace would take the cable with it, but stays for as long as the kernel has a connection in there to end: up to two minutes
    where nobody answers (Linux: tcp_orphan_retries).
    """
    with contextlib.suppress(OSError):  # what is still there goes with the bridge, or with the namespace
        delete_link(cable)


def set_forwarding(cable: str, on: bool) -> None:
    """Cut the cable at the bridge or mend it. What is sent over a cut one vanishes, as in a real network: no error tells of it."""
    # States of a bridge's port: 0 disabled, 3 forwarding. The same words to "ip link set … type bridge_slave" do nothing.
    _run("bridge", "link", "set", "dev", cable, "state", "3" if on else "0")


def configure_inside(address: IPv4Address, prefix: int, gateway: IPv4Address, metadata: str) -> None:
    """Called inside the machine: its interfaces, addresses and default route."""
    ip(
        "-batch",
        "-",
        stdin=(
            "link set dev lo up\n"
            f"address add {metadata}/32 dev lo\n"
            f"address add {address}/{prefix} dev eth0\n"
            "link set dev eth0 up\n"
            f"route add default via {gateway}\n"
        ),
    )
