"""What a user is told when a POSIX file system says no: which file, why, and what to do."""

from __future__ import annotations

import errno

from job_wrapper.errors import StoreError, StoreRefused

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}


def gone(path: str) -> StoreError:
    """The error where the store's folder is not there, or is another one."""
    return StoreError(
        f"{path}: its folder is not there any more, or is another than before: was its file system unmounted?"
    )


def translated(error: OSError, path: str) -> StoreError:
    """The error to raise for it: ``StoreRefused`` where to try again is of no use."""
    text = error.strerror or str(error)
    if error.errno == errno.ENOENT:
        return gone(path)
    if error.errno in _REFUSED:
        return StoreRefused(
            f"{path}: {text}. Give a checkpoint URI where this user may write (a folder for several users: mode 1777 before its first use)"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"{path}: {text}: free some space there, keep fewer checkpoints, or use another checkpoint URI"
        )
    return StoreError(f"{path}: {text}")
