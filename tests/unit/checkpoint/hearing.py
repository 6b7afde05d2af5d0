"""What a program tells its wrapper of its training, heard by a test in the wrapper's place."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from job_wrapper import curves, program
from job_wrapper.protocol import SOCKET_VARIABLE, decode


@contextmanager
def told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The messages, complete when it ends; each call is a message of its own."""
    monkeypatch.setattr(curves, "EVERY", 0.0)
    monkeypatch.setattr(program, "_gathered", None)
    messages: list[dict[str, Any]] = []
    path = str(folder / "events")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)

        def listen() -> None:
            while True:
                with listener.accept()[0] as stream, stream.makefile("rb") as lines:
                    for line in lines:
                        message = decode(line)
                        if message is None or message["type"] == "over":
                            return
                        messages.append(message)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        monkeypatch.setenv(SOCKET_VARIABLE, path)
        yield messages
        monkeypatch.delenv(SOCKET_VARIABLE)
        program._send({"type": "over"}, path)
        thread.join(20)
    monkeypatch.setattr(program, "_gathered", None)
