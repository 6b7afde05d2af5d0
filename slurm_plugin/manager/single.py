"""One manager a state directory, and the private directory itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_plugin.errors import ConfigError


@contextlib.contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold ``<state_dir>/manager.lock``; the kernel lets go of it however the process ends.

    Makes the directory (0700). Raises ``ConfigError`` if another manager holds it or the directory can't be used.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (state_dir / "requests").mkdir(mode=0o700, exist_ok=True)
        if state_dir.stat().st_uid == os.geteuid():
            state_dir.chmod(0o700)
        descriptor = os.open(state_dir / "manager.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"state_dir: {state_dir} can't be used: {error.strerror}; it must belong to the manager's user (SlurmUser)"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"{state_dir}/manager.lock: another manager runs already (process {holder}); only one may"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
