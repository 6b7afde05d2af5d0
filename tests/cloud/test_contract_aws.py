"""The contract of providers, kept by aws."""

from __future__ import annotations

import pytest

from tests.cloud.contract import ReclaimContract, RemoteContract
from tests.fixtures.ec2_stage import Ec2Stage


@pytest.fixture
def stage(ec2: Ec2Stage) -> Ec2Stage:
    return ec2


class TestAws(RemoteContract, ReclaimContract):
    pass
