"""An S3 endpoint that takes everything and keeps nothing, so that only the client's work is measured.

python -m tests.bench.sink    prints its port
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BUFFER = 1 << 20


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


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
