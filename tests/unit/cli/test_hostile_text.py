"""Text that others wrote (a log's reasons, names, paths) and that a terminal would obey: it is shown, and steers nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slurm_plugin.cli.outcome import Outcome, outcome
from tests.unit.cli.conftest import Said, Site

STEERS = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eevil\x7f\ud800"
Spotburst = Callable[..., Said]


def steering(text: str) -> set[str]:
    return {c for c in text if not c.isprintable() and c != "\n"}


def test_no_error_and_no_outcome_steers_a_terminal(
    site: Site, spotburst: Spotburst, capsys: pytest.CaptureFixture[str]
) -> None:
    said = spotburst("describe", "7", "--uri", "/nowhere\x1b[2J\x9b31m")
    assert said.code == 2
    assert "there is no such folder" in said.err
    assert not steering(said.err)
    outcome(False, Outcome("7", "asked", f"its attempt is ending already ({STEERS})"))
    assert not steering(capsys.readouterr().out)


def test_json_tells_all_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told = Outcome("7", "asked", f"Zürich 東京 {STEERS}")
    outcome(True, told)
    text = capsys.readouterr().out
    assert not steering(text)
    assert "Zürich 東京" in text
    assert json.loads(text)["text"] == told.text


@pytest.mark.parametrize("command", [("describe",), ("attempts",), ("checkpoints",), ("report",)])
def test_no_view_of_a_run_steers_a_terminal(command: tuple[str, ...], site: Site, spotburst: Spotburst) -> None:
    claim = site.claim("7", node="spot\x1b[2J\x9b31m")
    site.commit(claim, 1, b"x")
    claim.interrupted("reclaim\x1b]0;title\x07\x9b\u202e", {"arrived": site.now - 1})
    for more in ((), ("--json",)):
        said = spotburst(*command, "7", *more)
        assert said.code == 0, said.err
        assert not steering(said.out + said.err), more
