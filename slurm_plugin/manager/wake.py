"""What ends the wait between two passes: a datagram from ``resume_scripts``, a signal, or time."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path

from slurm_plugin.errors import ConfigError


class Waker:
    """A datagram socket at ``<state_dir>/manager.sock`` and a pair of sockets for this process itself.

    No bare descriptors: a thread that nudges after the end must not write into what has got their numbers since.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read, self._write = socket.socketpair()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for one in (self._read, self._write, self._socket):
            one.setblocking(False)
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
            self._write.send(b"x")

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or as soon as there is a reason to look."""
        if self.stopped:
            return
        ready, _, _ = select.select([self._read, self._socket], [], [], max(0.0, seconds))
        for one in ready:
            with contextlib.suppress(OSError):
                while one.recv(4096):
                    pass

    def close(self) -> None:
        """Remove the socket."""
        self._socket.close()
        self._read.close()
        self._write.close()
        self.path.unlink(missing_ok=True)
