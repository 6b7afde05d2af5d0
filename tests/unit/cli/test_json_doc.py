"""docs/json.md names the keys that are printed, all of them and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.store.freeing import Swept
from job_wrapper.store.probe import StoreReport
from slurm_plugin.cli.offerings import Row
from slurm_plugin.cli.outcome import Outcome
from tests.unit.cli.conftest import Said, Site

DOC = (Path(__file__).parents[3] / "docs" / "json.md").read_text()


def documented(section: str) -> set[str]:
    text = re.split(r"^## ", DOC, flags=re.MULTILINE)
    (part,) = [one for one in text if one.startswith(f"{section}\n")]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    "command",
    [["describe", "123"], ["attempts", "123"], ["report", "123"], ["checkpoints", "123"], ["cost", "123"], ["plan", "--hours", "1", "--price", "1"],
     ["checkpoints", "delete", "123", "--yes"]],
)  # fmt: skip
def test_what_is_printed_is_documented(command: list[str], site: Site, spotburst: Callable[..., Said]) -> None:
    site.reclaimed_twice()
    printed: Any = json.loads(spotburst(*command, "--json").out)
    section = " ".join(word for word in command if word.isalpha())
    assert set(printed[0] if isinstance(printed, list) else printed) == documented(section)


def test_what_needs_a_cluster_is_documented_as_it_is_made() -> None:
    assert {one.name for one in fields(Outcome)} == documented("checkpoint, suspend, resume, cancel")
    assert {one.name for one in fields(Row)} == documented("offerings")
    assert {one.name for one in fields(StoreReport)} == documented("store check")
    assert {*Swept._fields, "deleted"} == documented("checkpoints prune")
