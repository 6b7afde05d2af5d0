"""Process 1 of a machine: sets it up, starts agent and slurmd, reaps, and ends it when its time has come. Standard library only.

It restarts nothing: a slurmd that dies stays dead, as on a machine without supervision. When this process ends, the kernel ends every
other one in the machine.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from slurm_plugin.cloud.local import metadata, network
from slurm_plugin.cloud.local.namespaces import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    mount,
    set_host_name,
)
from slurm_plugin.cloud.local.state import now, read_json, write_json_once

METADATA_ADDRESS = "169.254.169.254"
LOOK = 1.0
"""Seconds between looks at control.json when no signal said that it changed."""
GPU_FILES = 16


def run(folder: Path, spec: dict[str, Any]) -> int:
    """Be the machine until its end. The return value is the machine's exit status, for ended.json."""
    wake = _wake_on_signals()
    set_host_name(spec["node"])
    _private_mounts()
    network.configure_inside(
        IPv4Address(spec["address"]), int(spec["prefix"]), IPv4Address(spec["gateway"]), METADATA_ADDRESS
    )
    _write_run(spec)
    _names(spec)
    control = metadata.Control(read_json(folder / "control.json") or {})
    metadata.serve(METADATA_ADDRESS, spec, control)
    _say(f"{spec['instance_id']} is {spec['node']} at {spec['address']}")

    started: dict[int, str] = {}
    boot_at = booted_at(float(spec["launched"]), float(spec["boot_time"]), now())
    seen = -1
    while True:
        seen = _read_control(folder, control, seen)
        ends = control.ends_at()
        if ends is not None and now() >= ends[0]:
            _say(f"ends: {ends[1]}")
            return 0
        if not started and now() >= boot_at:
            for command in spec["commands"]:
                process = _start(folder, command)
                started[process.pid] = command["name"]
            write_json_once(folder / "booted.json", {"time": now()})
        due = [LOOK] + ([ends[0] - now()] if ends else []) + ([boot_at - now()] if not started else [])
        _sleep(wake, max(0.0, min(due)))
        _reap(started)


def booted_at(launched: float, boot_time: float, moment: float) -> float:
    """When slurmd may start, Unix seconds: never within the second of the launch.

    slurmctld forgets a registration from before its own request to boot (22.05.8: "Still waiting for boot of node"; the job then waits until
    ResumeTimeout). It reckons the boot from an uptime in whole seconds, so that it may come out up to a second too early.
    """
    return max(moment + boot_time, math.floor(launched) + 1.0)


def _wake_on_signals() -> socket.socket:
    """Signals write a byte to the socket, so that the loop's select returns. Without handlers process 1 would never hear of them."""
    read, write = socket.socketpair()
    read.setblocking(False)
    write.setblocking(False)
    signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    _keep_open.append(write)
    return read


_keep_open: list[socket.socket] = []


def _sleep(wake: socket.socket, seconds: float) -> None:
    if select.select([wake], [], [], seconds)[0]:
        wake.recv(4096)


def _reap(started: dict[int, str]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in started:
            _say(f"{started[pid]} ended with status {os.waitstatus_to_exitcode(status)}")


def _read_control(folder: Path, control: metadata.Control, seen: int) -> int:
    """Take over control.json if it changed since ``seen`` (its time of change in ns)."""
    try:
        changed = (folder / "control.json").stat().st_mtime_ns
    except FileNotFoundError:
        return seen
    if changed != seen:
        control.replace(read_json(folder / "control.json") or {})
    return changed


def _private_mounts() -> None:
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    # /sys stays as the host has it: a new one would hide the cgroup mounts that slurmd looks for.
    # A site's munged has its socket there; the embedded cluster's own lies elsewhere.
    munge = os.open("/run/munge", os.O_PATH | os.O_DIRECTORY) if os.path.isdir("/run/munge") else None  # noqa: PTH112
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID, "mode=0755")
    if munge is not None:
        Path("/run/munge").mkdir()
        mount(f"/proc/self/fd/{munge}", "/run/munge", "", MS_BIND)
        os.close(munge)
    if not os.path.islink("/dev/shm") and os.path.isdir("/dev/shm"):  # noqa: PTH112, PTH114, S108
        mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108


def _write_run(spec: dict[str, Any]) -> None:
    """What a boot would have put in /run. The gpu files are devices, as gres.conf must name one a GPU (here each is a /dev/null)."""
    Path("/run/lock").mkdir()
    Path("/run/lock").chmod(0o1777)
    Path("/run/slurmd").mkdir(mode=0o755)
    place = Path("/run/spotburst")
    place.mkdir()
    (place / "node.json").write_text(spec["node_json"], encoding="utf-8")
    for number in range(GPU_FILES):
        os.mknod(place / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def _names(spec: dict[str, Any]) -> None:
    """Host names: the machines know each other by a file, and a question to a name server fails at once instead of after 10 s."""
    if Path("/etc/hosts").is_file():
        mount(spec["hosts_file"], "/etc/hosts", "", MS_BIND)
    resolver = Path("/run/resolv.conf")
    resolver.write_text("nameserver 127.0.0.1\noptions attempts:1 timeout:1\n", encoding="ascii")
    place = Path("/etc/resolv.conf").resolve()
    if place.is_relative_to("/run"):
        # A link into the host's /run, which is hidden here.
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(resolver.read_bytes())
    elif place.is_file():
        mount(str(resolver), str(place), "", MS_BIND)


def _start(folder: Path, command: dict[str, Any]) -> subprocess.Popen[bytes]:
    log = os.open(
        folder / command.get("output", f"{command['name']}.log"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
        0o644,
    )
    try:
        process = subprocess.Popen(
            command["argv"],
            env=command["env"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    process.returncode = 0  # reaped by the loop, not by subprocess
    return process


def _say(text: str) -> None:
    print(f"{now():.3f} {text}", file=sys.stderr, flush=True)
