"""Hostlists: what Slurm writes is read, what is folded comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("a", ("a",)),
        ("spot-[1-3,7]", ("spot-1", "spot-2", "spot-3", "spot-7")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("a1,b[1-2]", ("a1", "b1", "b2")),
        ("rack[1-2]n[1-2]", ("rack1n1", "rack1n2", "rack2n1", "rack2n2")),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["a[1-", "a[x]", "@all", "a!b", "a&b", "[", "a]["])
def test_what_is_no_hostlist(text: str) -> None:
    with pytest.raises(ConfigError, match="not a Slurm hostlist"):
        expand(text)


@given(st.sets(st.from_regex(r"[a-z]{1,3}-?[0-9]{1,3}", fullmatch=True), min_size=1, max_size=20))
def test_folding_loses_and_invents_nothing(names: set[str]) -> None:
    assert set(expand(fold(names))) == names


@pytest.mark.parametrize(
    "text",
    [
        "n[1-99999999999]", "n[0-9999999999999999999999]", "n[1-1000][1-1000]", "n[0-131071],m", "n" + "9" * 5000, "n[1-2]x" + "9" * 5000,
        "[" * 5000, "n[1-3/0]", "[1-99999991-39999]", "n[²]", "n[1-131072/1]x[1-2]",
    ],
)  # fmt: skip
def test_more_nodes_than_there_can_be_are_refused_at_once(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        expand(text)
    assert len(str(refused.value)) < 300


def test_as_many_as_there_can_be() -> None:
    assert len(expand("n[1-65536],m[0-65535]")) == 1 << 17
    assert expand("n[1-99999999/99999998]") == ("n1", "n99999999")
