"""What ends the wait between two passes: a datagram from ``resume_scripts``, a signal, or time."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from pathlib import Path

from slurm_plugin.errors import ConfigError


class Waker:
    """A datagram socket at ``<state_dir>/manager.sock`` and a pipe for this process itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._stopped = threading.Event()
        try:
            path.unlink(missing_ok=True)  # of a manager that is dead: we hold the lock
            self._socket.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"{path}: can't listen there: {error}") from error

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the wait now and for ever. Safe in a signal handler and from any thread."""
        self._stopped.set()
        self.nudge()

    def nudge(self) -> None:
        """End the wait now."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or as soon as there is a reason to look."""
        if self.stopped:
            return
        listening = self._socket.fileno()
        ready, _, _ = select.select([self._read, listening], [], [], max(0.0, seconds))
        with contextlib.suppress(OSError):
            while self._read in ready:
                os.read(self._read, 4096)
        with contextlib.suppress(OSError):
            while listening in ready:
                self._socket.recv(4096)

    def close(self) -> None:
        """Remove the socket."""
        self._socket.close()
        os.close(self._read)
        os.close(self._write)
        self.path.unlink(missing_ok=True)
