"""A process killed in the middle of an upload to S3: the parts that it has sent are collected with the next attempt's first commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store
from job_wrapper.store.retention import collect
from tests.fixtures.seaweedfs import S3Server
from tests.store.checkpoints import RUN, load, save, writer

UPLOADER = """
import sys, time
from job_wrapper.store.open import open_store
upload = open_store(sys.argv[1], prove=False).open_write(sys.argv[2])
for _ in range(24):
    upload.write(b"x" * (1 << 20))
print("sent", flush=True)
time.sleep(600)
"""


def uploads(server: S3Server, prefix: str) -> list[str]:
    client: Any = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
    )
    found = client.list_multipart_uploads(Bucket=server.bucket, Prefix=prefix).get("Uploads", [])
    return sorted(upload["Key"].rpartition("/")[2] for upload in found)


def killed_while_uploading(uri: str, key: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", UPLOADER, uri, key],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"sent\n"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.s3
def test_parts_that_a_killed_process_has_sent_are_collected(
    s3_server: S3Server, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program may have made boto3's default session before, with other credentials.
    others = boto3.Session(aws_access_key_id="other", aws_secret_access_key="other-secret")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", others)
    store = open_store(s3_uri, prove=False)
    prefix = s3_uri.removeprefix(s3_server.uri + "/")
    dead = RunLog(store, RUN).claim(writer(0))
    save(dead, 1, {"w": b"1"})
    killed_while_uploading(s3_uri, f"{dead.data_prefix}/killed.pack")
    claim = RunLog(store, RUN).claim(writer(1))
    assert load(store, claim.entry.summary.commits[-1].manifest) == {"w": b"1"}
    mine = store.open_write(f"{claim.data_prefix}/mine.pack")
    for _ in range(24):
        mine.write(b"y" * (1 << 20))
    killed_while_uploading(s3_uri, "c/13/main/data/e00000001/anothers.pack")
    assert "killed.pack" in uploads(s3_server, prefix)
    save(claim, 2, {"w": b"2"})
    assert any(path.endswith("/killed.pack") for path in collect(claim))
    left = uploads(s3_server, prefix)
    assert "killed.pack" not in left and "anothers.pack" in left
    mine.close()
    assert store.get_range(f"{claim.data_prefix}/mine.pack", 5, 3) == b"yyy"
    # What this very attempt's killed helpers left goes at the end.
    killed_while_uploading(s3_uri, f"{claim.data_prefix}/helper.pack")
    claim.end(0, "Completed")
    collect(claim)
    assert uploads(s3_server, f"{prefix}/{RUN}") == []
    assert load(store, claim.entry.summary.commits[-1].manifest) == {"w": b"2"}
