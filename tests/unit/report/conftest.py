"""A site with runs in a store, and a room for a real wrapper."""

from __future__ import annotations

from tests.unit.cli.conftest import site, spotburst
from tests.unit.run.conftest import room

__all__ = ["room", "site", "spotburst"]
