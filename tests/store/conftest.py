from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.open import open_store
from tests.fixtures.azurite import azurite
from tests.fixtures.gcs import gcs
from tests.fixtures.ministack import ministack
from tests.fixtures.seaweedfs import S3Server, seaweedfs
from tests.fixtures.server import Server

SERVERS = ("seaweedfs", "ministack", "azurite", "gcs")
"""Every server whose store must be safe."""
_STARTED: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "ministack": ministack,
    "azurite": azurite,
    "gcs": gcs,
}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("weed")) as server:
        yield server


def _session_server(name: str) -> Callable[..., Iterator[Server]]:
    @pytest.fixture(scope="session", name=f"{name}_server")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with _STARTED[name](tmp_path_factory.mktemp(name)) as running:
            yield running

    return server


ministack_server = _session_server("ministack")
azurite_server = _session_server("azurite")
gcs_server = _session_server("gcs")


def use(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Reach stores by ``environment``, and by nothing that this machine or another test has set."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "GCE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_uri(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix on SeaweedFS, its credentials in the environment."""
    use(monkeypatch, s3_server.environment)
    return f"{s3_server.uri}/{os.urandom(6).hex()}"


@pytest.fixture(params=["file", *(pytest.param(name, marks=pytest.mark.s3) for name in SERVERS)])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh checkpoint URI: on this machine's file system, and on a server of every kind."""
    if request.param == "file":
        return f"file://{tmp_path}/store"
    server: S3Server | Server = request.getfixturevalue(
        "s3_server" if request.param == "seaweedfs" else f"{request.param}_server"
    )
    use(monkeypatch, server.environment)
    return f"{server.uri}/{os.urandom(6).hex()}"


@pytest.fixture
def store(uri: str) -> ObjectStore:
    return open_store(uri, prove=False, create=True)
