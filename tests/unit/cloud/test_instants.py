"""Times as Azure and Google write them."""

from __future__ import annotations

import pytest

from slurm_plugin.cloud.instants import unix_seconds

NOON = 1767268800.0
"""2026-01-01 12:00 UTC."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01T12:00:00", NOON),
        ("2026-01-01T12:00:00.5Z", NOON + 0.5),
        ("2026-01-01T12:00:00.2500000Z", NOON + 0.25),
        ("2026-01-01T04:00:00.750-08:00", NOON + 0.75),
        ("2026-01-01T12:00:00.1234567+00:00", NOON + 0.1234567),
        ("", None),
        ("None", None),
        ("2026-01-01", None),
        ("2026-02-31T12:00:00Z", None),
        ("2026-01-01T12:00:00+99:00", None),
        ("2026-01-01T12:00:00Z, or so", None),
    ],
)
def test_unix_seconds(text: str, seconds: float | None) -> None:
    assert unix_seconds(text) == (None if seconds is None else pytest.approx(seconds, abs=1e-5))
