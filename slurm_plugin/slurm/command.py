"""Running one of Slurm's commands: bounded in time, in a known environment, its refusals told from its absence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable

_ABSENT = re.compile(
    r"unable to contact slurm controller|connect failure|connection refused|connection timed out|timed out|zero bytes were transmitted"
    r"|authentication|munge|standby|configuration source|communication|resource temporarily|cannot connect|controller is busy"
    r"|no route to host|unexpected message|incompatible|getaddrinfo|address to controller|shutting down|not responding",
    re.IGNORECASE,
)
"""Words by which the commands say that slurmctld did not answer, as opposed to "no" (slurm_errno.c of 22.05 and 24.11)."""

_KEPT = re.compile(r"SLURM_(CONF|CONF_SERVER|JWT|SACK_SOCKET|SACK_KEY)$")
_DROPPED = re.compile(r"(SLURM|SQUEUE|SINFO|SCONTROL|SBATCH|SACCT)_")
"""Users' defaults (SQUEUE_USERS, SINFO_FORMAT, SLURM_CLUSTERS, …) would filter or reshape the answers."""


def is_absence(said: str) -> bool:
    """Whether Slurm's words mean that slurmctld did not answer."""
    return _ABSENT.search(said) is not None


def environment(environ: Mapping[str, str], conf: Path | None) -> dict[str, str]:
    """The environment for Slurm's commands: without users' defaults, in English, with a PATH, with ``conf`` if given."""
    kept = {k: v for k, v in environ.items() if _KEPT.match(k) or not _DROPPED.match(k)}
    kept["LC_ALL"] = "C"
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    if conf is not None:
        kept["SLURM_CONF"] = str(conf)
    return kept


def run(command: Sequence[str], *, env: Mapping[str, str], timeout: float) -> str:
    """Standard output of ``command``.

    Raises ``SlurmUnavailable`` when the command isn't there, when slurmctld did not answer or when it took longer than ``timeout``
    seconds (the command and its children are killed), and ``SlurmRefused`` when Slurm said no, with its own words.
    """
    shown = " ".join(word if len(word) <= 200 else word[:197] + "..." for word in command)
    try:
        # A process group of its own: while slurmctld is away, the commands retry for minutes, some in child processes.
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmUnavailable(
            f"{command[0]}: can't be run: {error.strerror}; install Slurm's client commands or set slurm.bin_dir in burst.yaml"
        ) from error
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise SlurmUnavailable(f"{shown}: no answer within {timeout:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    output = stdout.decode(errors="replace")
    if process.returncode == 0:
        return output
    said = stderr.decode(errors="replace").strip() or output.strip()[-500:] or f"exit status {process.returncode}"
    said = "; ".join(line.strip() for line in said.splitlines() if line.strip())
    kind = SlurmUnavailable if process.returncode < 0 or is_absence(said) else SlurmRefused
    raise kind(f"{shown}: {said}")
