"""Authentication of a private cluster alone: a munged with a key and a socket of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

from slurm_plugin.cloud.local.state import read_json, write_json
from slurm_plugin.local_cluster.folder import is_own

_SOCKET_LIMIT = 107
"""Longest path of a Unix socket on Linux, bytes."""


class Munge:
    """The paths of one cluster's munged below its folder, and the command that runs it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._note = root / "run" / "sockets.json"

    @property
    def socket(self) -> Path:
        """In ``run``, or in a short folder of /tmp where that path would be too long for a socket."""
        inside = self._root / "run" / "munge.socket"
        return inside if len(os.fsencode(inside)) + 5 <= _SOCKET_LIMIT else self._short_folder() / "munge.socket"

    def command(self, program: str) -> list[str]:
        """What to run, in the foreground. Makes the key, unless there is one."""
        key, run, place = self._root / "etc" / "munge.key", self._root / "run", self.socket
        if not key.exists():
            key.touch(mode=0o400)
            key.write_bytes(secrets.token_bytes(128))
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return [
            *(program, "--foreground", "--force", "--num-threads=2", f"--socket={place}"),
            *(f"--key-file={key}", f"--pid-file={run / 'munged.pid'}", f"--seed-file={run / 'munged.seed'}"),
        ]

    def remove_short_folder(self) -> None:
        """Once munged has ended. None is no error."""
        known = read_json(self._note)
        if known is not None:
            shutil.rmtree(str(known["folder"]), ignore_errors=True)
            self._note.unlink()

    def _short_folder(self) -> Path:
        known = read_json(self._note)
        if known is not None and not _still_ours(Path(str(known["folder"]))):
            known = None  # /tmp was emptied meanwhile, and others may have made one of that name
        if known is None:
            folder = Path("/tmp") / f"spotburst-{secrets.token_hex(6)}"  # noqa: S108 - an unguessable name, made with mkdir
            folder.mkdir(mode=0o755)
            known = {"folder": str(folder)}
            write_json(self._note, known)
        return Path(str(known["folder"]))


def _still_ours(folder: Path) -> bool:
    try:
        info = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and is_own(info)
