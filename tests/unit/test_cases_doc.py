"""docs/cases.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_case_names_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "docs/cases.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        place = ROOT
        named = re.findall(r"`([\w/]+\.py|…)(?:::(\w+))?`", row.rsplit("|", 2)[1])
        assert named, row
        for file, test in named:
            place = place if file == "…" else ROOT / "tests" / file
            assert f"def {test or 'test_'}" in place.read_text(), f"{file}::{test}"
