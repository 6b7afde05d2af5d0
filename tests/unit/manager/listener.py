"""systemd's end of sd_notify: the socket, and what was told to it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path


class Listener:
    """``environ`` is what a service is started with."""

    def __init__(self, path: Path, address: str | None = None, watchdog: float = 0.0) -> None:
        self.words: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = address or str(path)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(0.05)
        self.environ = {"NOTIFY_SOCKET": address}
        if watchdog:
            self.environ["WATCHDOG_USEC"] = str(int(watchdog * 1e6))

    def hear(self) -> list[str]:
        """All that was told so far."""
        try:
            while True:
                self.words.append(self._socket.recv(4096).decode())
        except TimeoutError:
            return self.words

    def until(self, enough: Callable[[list[str]], bool], seconds: float = 120.0) -> list[str]:
        """All that was told, as soon as it is ``enough``."""
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(TimeoutError):
                self.words.append(self._socket.recv(4096).decode())
            if enough(self.words):
                return self.words
            assert time.monotonic() < end, f"told until now: {self.words}"
