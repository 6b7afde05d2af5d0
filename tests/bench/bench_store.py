"""What the store adds to a raw upload: hashing, packs, the part. Into an endpoint that throws everything away.

python -m tests.bench.bench_store
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import obstore
from obstore.store import S3Store

from job_wrapper.store import PartWriter, open_store
from tests.bench.table import Line, in_turns, timed

SIZE = 256 << 20


def lines() -> Iterator[Line]:
    """One line."""
    command = [sys.executable, "-m", "tests.bench.sink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            endpoint = f"http://127.0.0.1:{int(sink.stdout.readline())}"
            yield from _against(endpoint)
        finally:
            sink.kill()


def _against(endpoint: str) -> Iterator[Line]:
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_REGION="us-east-1")
    os.environ["AWS_UNSIGNED_PAYLOAD"] = (
        "true"  # as over TLS, where this is how we upload: without it both sign every byte
    )
    store = open_store("s3://sink/bench", endpoint_url=endpoint, prove=False)
    raw = S3Store(
        "sink",
        config={"endpoint": endpoint, "region": "us-east-1", "unsigned_payload": True},
        client_options={"allow_http": True},
    )
    data = memoryview(bytearray(os.urandom(1 << 20) * (SIZE >> 20)))

    def save() -> None:
        with PartWriter(store, "run/data/e1", "rank-0") as writer:
            writer.add_tensor("x", data, dtype="uint8", shape=[SIZE])
            writer.finish()

    ours, theirs = in_turns(
        lambda: timed(save),
        lambda: timed(
            lambda: obstore.put(raw, "raw", data, use_multipart=True, chunk_size=8 << 20, max_concurrency=16)
        ),
    )
    yield Line("S3 save into a sink, hashing included", ours, "obstore put", theirs, 1 / 0.9)


if __name__ == "__main__":
    for one in lines():
        print(one, flush=True)
