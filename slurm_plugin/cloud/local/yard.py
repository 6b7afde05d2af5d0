"""The machines on this host as they lie in the state folder: list, start, steer, end. Knows nothing of offerings or capacity."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from slurm_plugin.cloud.local import network
from slurm_plugin.cloud.local.metadata import Control
from slurm_plugin.cloud.local.state import Process, locked, now, read_json, try_lock, write_json, write_json_once

_MACHINE = "slurm_plugin.cloud.local.machine"


@dataclass(frozen=True)
class Machine:
    """One machine at one moment. ``process`` is its process 1, None before it exists."""

    folder: Path
    spec: dict[str, Any]
    control: dict[str, Any]
    process: Process | None
    booted: bool
    ended: dict[str, Any] | None

    @property
    def instance_id(self) -> str:
        """Its id, which is also its folder's name."""
        return self.folder.name

    @property
    def gone(self) -> bool:
        """Nothing of it runs any more."""
        return self.ended is not None

    @property
    def ends_at(self) -> float | None:
        """When it is to end, Unix seconds."""
        plan = Control(self.control).ends_at()
        return None if plan is None else plan[0]


class Yard:
    """The folder ``<state_dir>/local``. Methods are safe to call from several processes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places = folder / "instances"
        self._keepers: list[subprocess.Popen[bytes]] = []

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """One writer at a time; holds across processes, ends with the holder."""
        return locked(self.folder / "lock")

    def create(self, instance_id: str, spec: dict[str, Any]) -> None:
        """Note a machine that is to be: all at once or not at all. Call with the lock held; then ``start``."""
        self.places.mkdir(parents=True, exist_ok=True)
        draft = self.places / f".new-{instance_id}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        write_json(draft / "instance.json", spec)
        draft.rename(self.places / instance_id)
        self._write_hosts(spec)

    @property
    def hosts(self) -> Path:
        """What the machines have as /etc/hosts."""
        return self.folder / "hosts"

    def _write_hosts(self, newest: dict[str, Any]) -> None:
        """The living machines' names, newest first, then the host's own. In place: machines have this very file mounted."""
        living = [m.spec for m in reversed(self.machines()) if not m.gone]
        lines = [f"{newest['gateway']} {socket.gethostname()}", *(f"{s['address']} {s['node']}" for s in living)]
        with contextlib.suppress(OSError):
            lines += Path("/etc/hosts").read_text(encoding="utf-8", errors="replace").splitlines()
        text = "\n".join(lines) + "\n"
        with self.hosts.open("r+b" if self.hosts.exists() else "wb") as file:
            file.write(text.encode())
            file.truncate()

    def start(self, instance_id: str) -> None:
        """Set the process going that makes the machine. More than one does no harm."""
        self._keepers = [k for k in self._keepers if k.poll() is None]
        folder = self.places / instance_id
        with (folder / "machine.log").open("ab") as log:
            self._keepers.append(
                subprocess.Popen(
                    [sys.executable, "-I", "-m", _MACHINE, str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    # Nothing of the manager's own environment (a cloud's credentials, say) gets into a machine.
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                    start_new_session=True,
                )
            )

    def machines(self) -> list[Machine]:
        """All that the folder knows, oldest first; notes the end of those that ended without a word."""
        try:
            names = sorted(e.name for e in os.scandir(self.places) if not e.name.startswith("."))
        except FileNotFoundError:
            return []
        found = [m for m in map(self.machine, names) if m is not None]
        return sorted(found, key=lambda m: (m.spec["launched"], m.instance_id))

    def machine(self, instance_id: str) -> Machine | None:
        """One of them, by id; None for an unknown one."""
        folder = self.places / instance_id
        spec = read_json(folder / "instance.json")
        if spec is None:
            return None
        ended = read_json(folder / "ended.json")
        process = Process.from_dict(read_json(folder / "machine.json"))
        if ended is None and process is not None and not process.alive():
            ended = self._note_end(folder)
        return Machine(
            folder=folder,
            spec=spec,
            control=read_json(folder / "control.json") or {},
            process=process,
            booted=(folder / "booted.json").exists(),
            ended=ended,
        )

    def half_made(self, machine: Machine) -> bool:
        """Noted but never started, and nobody is at it: whoever was to start it died in between."""
        if machine.process is not None or machine.gone:
            return False
        lock = try_lock(machine.folder / "lock")
        if lock is None:
            return False
        os.close(lock)
        return True

    def steer(self, machine: Machine, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Machine:
        """Change control.json under the lock and tell the machine; returns it as it is then."""
        with self.lock():
            if machine.folder.is_dir():
                old = read_json(machine.folder / "control.json") or {}
                new = {**change(dict(old)), "changes": int(old.get("changes", 0)) + 1}
                write_json(machine.folder / "control.json", new)
        found = self.machine(machine.instance_id) or machine
        if found.process is not None:
            found.process.send(signal.SIGHUP)
        return found

    def end(self, machines: Iterable[Machine], *, patience: float = 10.0) -> list[Machine]:
        """End them at once; returns those of which something still runs after ``patience`` seconds."""
        all_of_them = list(machines)
        for machine in all_of_them:
            found = self.machine(machine.instance_id)
            if found is None or found.gone:
                continue
            if found.process is None:
                # Not started: a keeper that comes now finds the note, one that is at it is told by control.json.
                lock = try_lock(found.folder / "lock")
                if lock is not None:
                    self._note_end(found.folder)
                    os.close(lock)
            else:
                found.process.send(signal.SIGKILL)
        until = time.monotonic() + patience
        while True:
            left = [m for m in all_of_them if (f := self.machine(m.instance_id)) is not None and not f.gone]
            if not left or time.monotonic() >= until:
                return left
            for machine in left:
                found = self.machine(machine.instance_id)
                if found is not None and found.process is not None:
                    found.process.send(signal.SIGKILL)
            time.sleep(0.02)

    def forget(self, *, older_than: float) -> None:
        """Remove the folders of machines that ended before that time (Unix seconds), and of ones never noted whole."""
        with self.lock():
            for draft in self.places.glob(".new-*"):
                shutil.rmtree(draft, ignore_errors=True)
            for machine in self.machines():
                if machine.ended is not None and float(machine.ended["time"]) < older_than:
                    shutil.rmtree(machine.folder, ignore_errors=True)

    def strays(self) -> list[Process]:
        """Keepers and process 1s of machines of this folder, found by their command line: also when their notes are lost."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if (
                    _MACHINE in words
                    and any(w.startswith(f"{self.places}/") for w in words)
                    and (process := Process.of(int(entry.name))) is not None
                ):
                    found.append(process)
        return found

    def tear_down(self, machines: Iterable[Machine]) -> None:
        """End these machines and remove their folders."""
        gone = list(machines)
        for machine in gone:
            self.steer(machine, lambda c: {**c, "terminate": {"asked": now(), "at": 0.0}})
        self.end(gone)
        for machine in gone:
            shutil.rmtree(machine.folder, ignore_errors=True)

    def kill_strays(self) -> None:
        """End what ``strays`` finds, machines first: their keepers then end by themselves, unless they were about to make one."""
        for _ in range(3):
            for stray in self.strays():
                stray.send(signal.SIGKILL)
                stray.wait(5.0)
        for keeper in self._keepers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(5.0)
        self._keepers = [k for k in self._keepers if k.poll() is None]

    def used_addresses(self) -> tuple[set[IPv4Address], IPv4Address | None]:
        """Addresses of machines that are not gone, and the one given out last."""
        known = self.machines()
        used = {IPv4Address(m.spec["address"]) for m in known if not m.gone}
        return used, (IPv4Address(known[-1].spec["address"]) if known else None)

    def _note_end(self, folder: Path) -> dict[str, Any]:
        """For a machine whose keeper was killed, or was never there."""
        if spec := read_json(folder / "instance.json"):
            network.pull_out(spec["cable"])
        with contextlib.suppress(FileNotFoundError):
            write_json_once(folder / "ended.json", {"time": now(), "status": None})
        return read_json(folder / "ended.json") or {"time": now(), "status": None}
