"""What this host must offer for the embedded cloud to run on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slurm_plugin.errors import LocalCloudError

_PACKAGES = {
    "ip": "iproute2",
    "bridge": "iproute2",
    "unshare": "util-linux",
    "slurmd": "slurmd",
    "slurmctld": "slurmctld",
    "sinfo": "slurm-client",
    "munged": "munge",
}


def find_command(name: str, root: Path | None = None) -> str | None:
    """Where a command is: below a Slurm's own prefix, on PATH, or in the system folders that a user's PATH may lack."""
    places = [str(root / part) for part in ("sbin", "bin")] if root else []
    return shutil.which(
        name, path=os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
    )


def require(commands: Sequence[str], root: Path | None = None) -> None:
    """Raise ``LocalCloudError`` unless this process may make machines and the commands are there."""
    if os.geteuid() != 0:
        raise LocalCloudError(
            "the local cloud needs root: each machine gets network, process and mount namespaces of its own. Use sudo."
        )
    missing = [c for c in commands if find_command(c, root) is None]
    if missing:
        packages = sorted({_PACKAGES.get(c, c) for c in missing})
        raise LocalCloudError(
            f"the local cloud needs {', '.join(missing)}, not found here: apt-get install {' '.join(packages)} (Debian, Ubuntu)"
        )
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        raise LocalCloudError(
            f"this host does not let us make namespaces ({tried.stderr.strip()}): in a container, it needs --privileged"
        )
