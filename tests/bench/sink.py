"""An S3 endpoint that takes everything and keeps nothing, so that only the client's work is measured.

python -m tests.bench.sink [--slow] [CERTIFICATE KEY]    prints its port; with a certificate it speaks TLS

``--slow``: each connection takes at most 50 MB/s, so that a client holds as much in memory as it ever does.
"""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_BUFFER = 1 << 20
SLOW = "--slow" in sys.argv


class Handler(BaseHTTPRequestHandler):
    """Answers as a multipart upload needs it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # else each answer with a body waits 40 ms for the client's acknowledgement of its head
    )

    def _drain(self) -> None:
        buffer = memoryview(bytearray(_BUFFER))
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            count = self.rfile.readinto(buffer[: min(left, _BUFFER)])  # type: ignore[attr-defined]
            if not count:
                break
            left -= count
            if SLOW:
                time.sleep(count / 50e6)

    def _answer(self, body: bytes = b"") -> None:
        self.send_response(200)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        """An object, or a part of one."""
        self._drain()
        self._answer()

    def do_POST(self) -> None:
        """Begin or complete a multipart upload."""
        self._drain()
        if "uploadId=" in self.path:
            self._answer(
                b"<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>0</ETag></CompleteMultipartUploadResult>"
            )
        else:
            self._answer(
                b"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            )

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def running(*certificate: Path, slow: bool = False) -> Iterator[str]:
    """A sink in a process of its own; yields its endpoint. ``certificate`` and key, for TLS."""
    command = [sys.executable, "-m", "tests.bench.sink", *(["--slow"] if slow else []), *map(str, certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            yield f"http{'s' if certificate else ''}://127.0.0.1:{int(sink.stdout.readline())}"
        finally:
            sink.kill()


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority of our own, and a certificate for 127.0.0.1 and its key. Raises ``OSError`` where there is no openssl."""
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = [folder / name for name in ("ca.pem", "ca.key", "sink.pem", "sink.key")]
    ca, ca_key, own, own_key = names
    for command in (
        [*new, "-subj", "/CN=bench", "-out", str(ca), "-keyout", str(ca_key)],
        [
            *new, "-subj", "/CN=sink", "-out", str(own), "-keyout", str(own_key), "-CA", str(ca), "-CAkey", str(ca_key),
            "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
        ],
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    return ca, own, own_key


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files = [argument for argument in sys.argv[1:] if argument != "--slow"]
    if files:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*files)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(server.server_port, flush=True)
    server.serve_forever()
