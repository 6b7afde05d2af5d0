"""How often the kernel has killed for memory in this process's cgroup: tells OutOfMemory from a SIGKILL by somebody."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def memory_files(cgroup: str, root: Path = ROOT) -> list[Path]:
    """Where the counters lie, from the text of ``/proc/self/cgroup``: version 2 (``0::/path``) and version 1. Pure."""
    files = []
    for line in cgroup.splitlines():
        pieces = line.split(":", 2)
        if len(pieces) != 3:
            continue
        _, controllers, path = pieces
        if not controllers:
            files.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return files


def oom_kills(proc: Path = Path("/proc/self/cgroup"), root: Path = ROOT) -> int | None:
    """The count so far; None where it can't be read."""
    count: int | None = None
    try:
        files = memory_files(proc.read_text(), root)
    except OSError:
        return None
    for file in files:
        try:
            text = file.read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdecimal():
                count = (count or 0) + int(value)
    return count
