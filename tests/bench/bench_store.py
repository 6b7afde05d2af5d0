"""What the store adds to a raw upload: hashing, packs, the part. Into an endpoint that throws everything away.

python -m tests.bench.bench_store
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import obstore
from obstore.store import S3Store

from job_wrapper.store import PartWriter, open_store
from job_wrapper.store.bucket import PART
from tests.bench import sink
from tests.bench.staged import staged
from tests.bench.table import Line, in_turns, timed

SIZE = 256 << 20
ROUNDS = 9


def lines() -> Iterator[Line]:
    """Over TLS, as to a cloud; over plain HTTP, where every byte is signed; and with neither, which no setting of ours gives by itself."""
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_REGION="us-east-1")
    data = staged(SIZE)
    with tempfile.TemporaryDirectory() as folder:
        try:
            authority, *certificate = sink.certificates(Path(folder))
        except OSError:
            print("no openssl here: nothing is measured over TLS")
        else:
            with sink.running(*certificate) as endpoint:
                os.environ["AWS_CA_BUNDLE"] = str(authority)
                yield _against(endpoint, data, "S3 save into a sink, TLS", authority.read_bytes())
                del os.environ["AWS_CA_BUNDLE"]
    with sink.running() as endpoint:
        yield _against(endpoint, data, "S3 save into a sink, signed")
        os.environ["AWS_UNSIGNED_PAYLOAD"] = "true"
        yield _against(endpoint, data, "S3 save into a sink, bare")
        del os.environ["AWS_UNSIGNED_PAYLOAD"]


def _against(endpoint: str, data: memoryview, what: str, authority: bytes | None = None) -> Line:
    store = open_store("s3://sink/bench", endpoint_url=endpoint, prove=False)
    options = {"root_certificate": authority} if authority else {"allow_http": True}
    config = {"endpoint": endpoint, "region": "us-east-1"}
    if authority:
        config["unsigned_payload"] = "true"
    raw = S3Store("sink", config=config, client_options=options)  # type: ignore[arg-type]

    def save() -> None:
        with PartWriter(store, "run/data/e1", "rank-0") as writer:
            writer.add_tensor("x", data, dtype="uint8", shape=[len(data)])
            writer.finish()

    def put(**settings: int) -> None:
        obstore.put(raw, "raw", data, use_multipart=True, **settings)  # type: ignore[arg-type]

    ours, own, plain = in_turns(
        lambda: timed(save),
        lambda: timed(lambda: put(chunk_size=PART, max_concurrency=16)),
        lambda: timed(put),
        rounds=ROUNDS,
    )
    return Line(what, ours, "obstore put, the faster of two", min(own, plain), 1 / 0.9)


if __name__ == "__main__":
    for one in lines():
        print(one, flush=True)
