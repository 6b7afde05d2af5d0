"""The programs in docs/training.md that are whole run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
PROGRAMS = [
    block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "while " in block or "for epoch" in block
]


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SPOTBURST_SOCKET", "SPOTBURST_RUN", "SPOTBURST_URI"):
        monkeypatch.delenv(name, raising=False)
    found: dict[str, object] = {"__name__": "program"}
    exec(compile(program, "docs/training.md", "exec"), found)  # noqa: S102
    state = found.get("state")
    if isinstance(state, dict):
        assert state["step"] in (10, 100)
    else:
        assert found["checkpoint"].completed in (30, 21)  # type: ignore[attr-defined]
