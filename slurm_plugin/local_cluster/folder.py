"""Whose a private cluster's folder is: root runs what lies there, and ends the processes that are noted there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurm_plugin.errors import LocalCloudError


def require_own(folder: Path) -> None:
    """Raises ``LocalCloudError`` for one that another user has made, or may write to. One that is not there yet is made by its first user."""
    try:
        info = os.lstat(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LocalCloudError(f"{folder}: can't be used for a cluster: {error.strerror}") from error
    if not is_own(info) or not stat.S_ISDIR(info.st_mode):
        raise LocalCloudError(
            f"{folder}: can't be used for a cluster: it is user {info.st_uid}'s, or others may write to it, and what lies there is run as root. "
            "Name a folder of your own, or one that is not there yet"
        )


def is_own(info: os.stat_result) -> bool:
    """Whether nobody but this user may change what is in there."""
    return info.st_uid == os.geteuid() and not info.st_mode & stat.S_IWOTH
