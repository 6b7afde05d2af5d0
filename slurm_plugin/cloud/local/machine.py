"""Makes one machine and keeps it: ``python -m slurm_plugin.cloud.local.machine <instance folder>``. Standard library only.

The process stays outside as the parent of the machine's process 1, and notes how it ended. Killed before the machine has started, it takes all
with it (process 1 waits for a word from it); killed later, it leaves the machine running. Any number of them may be started for one
folder: the lock lets one through.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from slurm_plugin.cloud.local import network
from slurm_plugin.cloud.local.namespaces import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    setns,
    unshare,
)
from slurm_plugin.cloud.local.state import Process, now, read_json, try_lock, write_json_once


def main(arguments: list[str] | None = None) -> int:
    """Make the machine of the folder unless it was made or is being made; return when it has ended."""
    folder = Path((arguments if arguments is not None else sys.argv[1:])[0])
    spec = read_json(folder / "instance.json")
    if spec is None:
        print(f"{folder}: no instance.json", file=sys.stderr)
        return 1
    lock = _lock(folder)
    if lock is None or (folder / "machine.json").exists() or (folder / "ended.json").exists():
        return 0
    try:
        status = _keep(folder, spec, lock)
    except OSError as error:
        print(f"machine could not be made: {error}", file=sys.stderr)
        _note_end(folder, error=str(error))
        return 1
    _note_end(folder, status=status)
    return 0


def _lock(folder: Path) -> int | None:
    """Whoever lists machines holds the lock for an instant, to see whether it is free: try more than once."""
    for _ in range(5):
        lock = try_lock(folder / "lock")
        if lock is not None:
            return lock
        time.sleep(0.05)
    return None


def _note_end(folder: Path, **facts: Any) -> None:
    # The folder is gone when the whole cloud was taken down.
    with contextlib.suppress(FileNotFoundError):
        write_json_once(folder / "ended.json", {"time": now(), **facts})


def _keep(folder: Path, spec: dict[str, Any], lock: int) -> int:
    """Make the machine, wait for its end, return the wait status of its process 1."""
    go_read, go_write = os.pipe()
    ready_read, ready_write = os.pipe()
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    # The next child is process 1 of a new process namespace, this process stays where it is, and so do its later children: a namespace
    # whose process 1 has died takes no more.
    unshare(CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        os.close(ready_read)
        os.close(lock)
        os.close(own)
        _become_machine(folder, spec, go_read, ready_write)
    os.close(go_read)
    os.close(ready_write)
    try:
        setns(own, CLONE_NEWPID)
        os.close(own)
        if os.read(ready_read, 1) != b"1":
            raise OSError("its process 1 could not enter namespaces of its own (see machine.log)")
        # Of a keeper that was killed half-way: the kernel takes it away some time after its machine.
        network.pull_out(spec["cable"])
        network.plug_in(spec["cable"], spec["bridge"], pid, IPv4Address(spec["address"]))
        process = Process.of(pid)
        if process is None or not write_json_once(folder / "machine.json", process.to_dict()):
            raise OSError("its process 1 ended at once (see machine.log)")
        os.write(go_write, b"1")
    except OSError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        network.pull_out(spec["cable"])
        raise
    finally:
        os.close(ready_read)
        os.close(go_write)
    status = os.waitpid(pid, 0)[1]
    network.pull_out(spec["cable"])
    return status


def _become_machine(folder: Path, spec: dict[str, Any], go: int, ready: int) -> None:
    """In the child: never returns."""
    code = 1
    try:
        unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC)
        os.write(ready, b"1")
        os.close(ready)
        # Nothing comes when the keeper died before it was done: then there must be no machine.
        if os.read(go, 1) == b"1":
            os.close(go)
            from slurm_plugin.cloud.local import init

            code = init.run(folder, spec)
    except BaseException as error:
        print(f"machine failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
