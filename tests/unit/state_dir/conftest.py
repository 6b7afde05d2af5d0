"""A store and a state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from job_wrapper.store import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path / 'store'}", prove=False, create=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"
