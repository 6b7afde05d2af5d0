"""What systemd is told: ready, alive, what the manager does now (sd_notify(3)). Without systemd all of it does nothing."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Service:
    """One datagram a word, to the socket that systemd names in ``NOTIFY_SOCKET``. Nothing here ever raises, or takes more than a second."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # "@…" is the abstract namespace, whose names begin with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = _seconds(environ)
        self._status = ""
        self._ready = False

    @property
    def longest_pause(self) -> float:
        """Seconds that may lie between two ``alive`` at most, half of systemd's patience; infinite where no watchdog waits."""
        return self._watchdog / 2

    def ready(self) -> None:
        """The service has begun. Once is enough."""
        if not self._ready:
            self._ready = True
            self._tell("READY=1")

    def alive(self) -> None:
        """A pass has ended, or a turn of waiting: systemd's patience begins anew."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The service ends."""
        self._tell("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``; told only where it has changed."""
        text = " ".join(text.split())
        if text != self._status:
            self._status = text
            self._tell(f"STATUS={text}")

    def _tell(self, word: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(1.0)
            to.sendto(word.encode(), self._address)


def _seconds(environ: Mapping[str, str]) -> float:
    """``WATCHDOG_USEC``, where it is meant for this process; else infinite."""
    meant = environ.get("WATCHDOG_PID", "")
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdecimal() or int(text) == 0 or (meant and meant != str(os.getpid())):
        return float("inf")
    return int(text) / 1e6
