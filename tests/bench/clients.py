"""Raw S3 clients, each as its makers would have it used, to measure the store beside. Those that are not installed are left out.

boto3's transfer manager reads and writes memory; the AWS common runtime (CRT) and s5cmd want files, which lie on /dev/shm.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from tests.fixtures.seaweedfs import S3Server

KEY = "raw"


@dataclass(frozen=True)
class Client:
    """``put`` writes the bytes to ``raw-<name>``, ``get`` reads the object ``raw`` back."""

    name: str
    put: Callable[[], object]
    get: Callable[[], object]


class _Into(io.RawIOBase):
    """A file that is a buffer."""

    def __init__(self, target: memoryview) -> None:
        self._target, self._at = target, 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset
        return offset

    def write(self, data: Any) -> int:
        self._target[self._at : self._at + len(data)] = data
        self._at += len(data)
        return len(data)


def clients(server: S3Server, data: memoryview, target: memoryview, folder: Path) -> list[Client]:
    """All that are here. ``folder`` is for the files of those that want some."""
    source, copy = folder / "source", folder / "copy"
    source.write_bytes(data)
    return [
        _obstore(server, data, target),
        *_boto3(server, data, target),
        *_crt(server, source, copy),
        *_s5cmd(server, source, copy),
    ]


def _obstore(server: S3Server, data: memoryview, target: memoryview) -> Client:
    config = {"endpoint": server.endpoint_url, "region": "us-east-1"}
    config |= {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    store = S3Store(server.bucket, config=config, client_options={"allow_http": True})  # type: ignore[arg-type]

    def get() -> None:
        target[:] = memoryview(obstore.get(store, KEY).bytes())

    return Client("obstore", lambda: obstore.put(store, f"{KEY}-obstore", data, use_multipart=True), get)


def _boto3(server: S3Server, data: memoryview, target: memoryview) -> list[Client]:
    try:
        import boto3
    except ImportError:
        return []
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    return [
        Client(
            "boto3",
            lambda: client.upload_fileobj(io.BytesIO(data), server.bucket, f"{KEY}-boto3"),
            lambda: client.download_fileobj(server.bucket, KEY, _Into(target)),
        )
    ]


def _crt(server: S3Server, source: Path, copy: Path) -> list[Client]:
    try:
        import botocore.session
        from s3transfer.crt import (
            BotocoreCRTCredentialsWrapper,
            BotocoreCRTRequestSerializer,
            CRTTransferManager,
            create_s3_crt_client,
        )
    except ImportError:
        return []
    session = botocore.session.Session()
    session.set_credentials(server.access_key, server.secret_key)
    provider = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
    runtime = create_s3_crt_client("us-east-1", crt_credentials_provider=provider, use_ssl=False)
    options = {"endpoint_url": server.endpoint_url, "region_name": "us-east-1"}
    manager = CRTTransferManager(runtime, BotocoreCRTRequestSerializer(session, options))
    return [
        Client(
            "CRT",
            lambda: manager.upload(str(source), server.bucket, f"{KEY}-crt").result(),
            lambda: manager.download(server.bucket, KEY, str(copy)).result(),
        )
    ]


def _s5cmd(server: S3Server, source: Path, copy: Path) -> list[Client]:
    beside = Path(sys.executable).parent / "s5cmd"
    program = str(beside) if beside.exists() else shutil.which("s5cmd")
    if program is None:
        return []
    environ = {**os.environ, **server.environment}

    def run(origin: str, target: str) -> None:
        command = [program, "--endpoint-url", server.endpoint_url, "cp", origin, target]
        subprocess.run(command, check=True, capture_output=True, env=environ)

    name = f"s3://{server.bucket}/{KEY}"
    return [Client("s5cmd", lambda: run(str(source), f"{name}-s5cmd"), lambda: run(name, str(copy)))]
