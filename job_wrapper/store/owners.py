"""Whose a run is, in a folder that several users write to. Names there can be guessed, so they say nothing of it; the file system does."""

from __future__ import annotations

import os
import stat

from job_wrapper.errors import StoreRefused
from job_wrapper.store.posix import PosixStore


def is_of(store: PosixStore, run: str, user: int) -> bool:
    """Whether that user laid out the run. What others laid out under a job's name must not count as that job's."""
    found = [store.standing(folder) for folder in _folders(run)]
    return all(info is not None and info.st_uid == user for info in found)


def run_owner(store: PosixStore, run: str) -> tuple[int, int] | None:
    """User id and group id of whoever laid out the run; None where there is none.

    Raises ``StoreRefused`` where it can't be told, for anybody but that user: its folders are several users', or one is a link. Then who has the
    one decides where the other leads, and what is done there as its owner would be done to somebody else's files.
    """
    found = [info for folder in _folders(run) if (info := store.standing(folder)) is not None]
    if not found:
        return None
    users = {info.st_uid for info in found}
    if len(users) > 1 or (users != {os.geteuid()} and not all(stat.S_ISDIR(info.st_mode) for info in found)):
        raise StoreRefused(
            f"{store.uri}/{run}: its folders belong to several users, or one of them is a link: nothing of it is touched. "
            "Look who has made them (ls -ld)"
        )
    return found[-1].st_uid, found[-1].st_gid


def _folders(run: str) -> tuple[str, str]:
    return run.rpartition("/")[0], run
