"""EC2 on moto, one server for all tests of a process; and clouds that are waited for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fixtures.ec2_stage import Ec2Stage
    from tests.fixtures.moto_ec2 import Ec2Server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clouds answer in this process: on a busy machine that may take long, and is no fault of theirs."""
    for name, answer in (("aws", "READ_TIMEOUT"), ("azure", "TIMEOUT"), ("gcp", "READ_TIMEOUT")):
        if (client := sys.modules.get(f"slurm_plugin.cloud.{name}.client")) is not None:
            for limit in (answer, "READ_PATIENCE", "WRITE_PATIENCE"):
                monkeypatch.setattr(client, limit, 60.0)
    if (named := sys.modules.get("slurm_plugin.cloud.named")) is not None:
        monkeypatch.setattr(named.NamedCloud, "patience", 60.0)


@pytest.fixture(scope="session")
def ec2_server() -> Iterator[Ec2Server]:
    from tests.fixtures.moto_ec2 import Ec2Server

    with Ec2Server() as server:
        yield server


@pytest.fixture
def ec2(ec2_server: Ec2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ec2Stage:
    """The aws provider, its cloud as new."""
    from tests.fixtures.ec2_stage import Ec2Stage

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    ec2_server.reset()
    return Ec2Stage(ec2_server, tmp_path)
