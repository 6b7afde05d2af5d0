"""The contract of providers, kept by the embedded cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud.contract import ReclaimContract
from tests.fixtures.local_stage import LocalStage, local_stage

pytestmark = pytest.mark.cluster


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LocalStage]:
    with local_stage(tmp_path) as made:
        yield made


class TestLocal(ReclaimContract):
    pass
