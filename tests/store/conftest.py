from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.open import open_store
from tests.fixtures.seaweedfs import S3Server, seaweedfs


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def s3_uri(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix on SeaweedFS, its credentials in the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3_server.uri}/{os.urandom(6).hex()}"


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh checkpoint URI: once on this machine's file system, once on SeaweedFS."""
    if request.param == "file":
        return f"file://{tmp_path}/store"
    value: str = request.getfixturevalue("s3_uri")
    return value


@pytest.fixture
def store(uri: str) -> ObjectStore:
    return open_store(uri, prove=False, create=True)
