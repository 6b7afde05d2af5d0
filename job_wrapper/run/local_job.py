"""Outside Slurm a process takes the place of a job."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from job_wrapper.run.identity import LOCAL


def local_job_id(pid: int) -> str:
    """The name of a process that runs outside Slurm, where a job's id would stand: found again by its start, not by its number alone."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{LOCAL}-{pid}-{_start_time(pid)}-{host}"


def local_job_alive(job_id: str) -> bool:
    """Whether that process still runs. One of another host, or a Slurm job, can't be seen from here: then the newer start wins."""
    match = re.fullmatch(rf"{LOCAL}-(\d+)-(\d+)-.*", job_id)
    return match is not None and job_id == local_job_id(int(match[1])) and not _is_dead(int(match[1]))


def _start_time(pid: int) -> str:
    return (*_fields(pid), *["0"] * 20)[19]


def _is_dead(pid: int) -> bool:
    """Nobody has asked for its exit code yet, and in a container without an init nobody ever may."""
    return _fields(pid)[:1] in (["Z"], ["X"])


def _fields(pid: int) -> list[str]:
    """Those of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
