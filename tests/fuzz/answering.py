"""A server that answers every request with the bytes that it is given, whatever was asked."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.fixtures.ports import free_ports


class Answering:
    """``answer``: sent as it is where it begins like HTTP, else as the body of a good answer with these ``headers``. Then the connection ends."""

    def __init__(self, headers: str = "Content-Type: application/json\r\n") -> None:
        self.answer = b""
        self._headers = headers
        self._listener = socket.create_server(("127.0.0.1", free_ports(1)[0]))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Answering:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(1.0)
                self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked and (more := connection.recv(65536)):
            asked += more
        head, _, body = asked.partition(b"\r\n\r\n")
        length = next((int(v) for k, _, v in (line.partition(b":") for line in head.lower().split(b"\r\n")) if k == b"content-length"), 0)  # fmt: skip
        while len(body) < length and (more := connection.recv(65536)):
            body += more
        answer = self.answer
        if not answer.startswith(b"HTTP/"):
            answer = f"HTTP/1.1 200 OK\r\n{self._headers}Content-Length: {len(answer)}\r\nConnection: close\r\n\r\n".encode() + answer  # fmt: skip
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
