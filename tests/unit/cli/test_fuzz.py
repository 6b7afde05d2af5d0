"""Whatever is typed, spotburst says something and ends with a code: never a traceback, never another exception."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_plugin.cli.app import _GROUPS
from tests.fixtures.command_line import every_command
from tests.unit.cli.conftest import Said, Site

ACTS = {"manager", "local", "man", "shell", "render", "report", "store", "check"}
"""Left out: they start processes, write where their arguments say, or look for as long as a second at each store and clock."""


def known_words() -> list[str]:
    """Options and sub-commands of all commands, so that words mean something now and then."""
    found: set[str] = set()
    for path, command, context in every_command():
        if not (ACTS | {"run", "agent", "progress"}).intersection(path):
            found.update(path[-1:])
            found.update(
                option for param in command.get_params(context) for option in param.opts if option.startswith("-")
            )
    return sorted(found - {"--install-completion", "--show-completion"})


TYPED = st.one_of(
    st.sampled_from(known_words()),
    st.sampled_from(
        ["123", "50_1", "50", "123+1", "123.0", "50_[1-3]", "123,4", "JobId=1", "-1", "0", "", " ", "all", "--", "-", "=", "nan", "inf", "1e400",
         "9" * 400, "-" * 300, "\x00", "\ud800", "1m", "0s", "7h", "10", "2.6", "file:///nowhere", "s3://", "ftp://x", "../..", "/dev/null", "%s", "{}"]
    ),
    st.text(max_size=20),
)  # fmt: skip


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores on servers are another test's; here a made-up name would be looked up."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/nowhere")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(command=st.sampled_from(sorted(set(_GROUPS) - ACTS)), words=st.lists(TYPED, max_size=5))
def test_any_words(
    command: str, words: list[str], site: Site, no_network: None, spotburst: Callable[..., Said]
) -> None:
    if any("://" in word and not word.startswith("file:") for word in words):
        words = [word for word in words if "://" not in word]
    said = spotburst(command, *words)
    assert said.code in {0, 1, 2, 81, 82, 83}
    assert "Traceback" not in said.out + said.err
    if said.code == 2:
        assert said.err.strip(), "an error says what is wrong"


@pytest.mark.parametrize("words", [["\ud800"], ["describe", "\ud800"], ["plan", "--hours", "nan", "--price", "1"],
                                   ["plan", "--hours", "1e300", "--price", "1e300"], ["plan", "--hours", "inf", "--price", "1"],
                                   ["plan", "--hours", "1", "--price", "1", "--reclaims-a-day", "1e308", "--nodes", "9" * 30],
                                   ["plan", "--hours", "1", "--price", "1", "--save-time", "9" * 400],
                                   ["describe", "9" * 400], ["describe", "1" + "_" + "9" * 400]])  # fmt: skip
def test_words_that_were_found_once(words: list[str], site: Site, spotburst: Callable[..., Said]) -> None:
    said = spotburst(*words)
    assert said.code in {0, 2}
    assert "Traceback" not in said.out + said.err
