"""For all tests: Hypothesis measures no time (a busy machine is no fault)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("spotburst", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spotburst")
pytest.register_assert_rewrite("tests.unit.checkpoint.training")
