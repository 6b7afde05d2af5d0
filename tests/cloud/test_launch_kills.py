"""The manager is killed between any two steps of a launch, before or after the step took effect: the next one finds every machine, makes
none twice, and leaves none that nobody knows. For the providers that keep a journal of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud.provider import Launched
from tests.cloud.stage import Stage, listed, patiently, requests
from tests.cloud.test_contract_azure import AzureStage
from tests.cloud.test_contract_gcp import GcpStage
from tests.fixtures.azure import azure
from tests.fixtures.gce import gce

STEPS = {
    "gcp": ("insert", "operation", "instances", "instance", "delete"),
    "azure": ("create", "get", "machines", "delete"),
}


class Killed(BaseException):
    """As SIGKILL: nothing catches it."""


class Killer:
    """Counts the steps of a provider and kills at one of them. ``after``: when it has taken effect."""

    def __init__(self, at: int, after: bool) -> None:
        self.at, self.after, self.count = at, after, 0

    def wrap(self, owner: Any, name: str) -> None:
        """Make that method a step."""
        plain: Callable[..., Any] = getattr(owner, name)

        def step(*given: Any, **named: Any) -> Any:
            self.count += 1
            mine = self.count == self.at
            if self.count > self.at or (mine and not self.after):
                raise Killed
            answer = plain(*given, **named)
            if mine:
                raise Killed
            return answer

        setattr(owner, name, step)


@contextmanager
def stage_of(kind: str, folder: Path) -> Iterator[Stage]:
    if kind == "gcp":
        with gce() as cloud:
            yield GcpStage(cloud, folder)
    else:
        with azure() as other:
            yield AzureStage(other, folder)


@pytest.mark.parametrize(("kind", "gang"), [("gcp", None), ("azure", "g")])
def test_killed_at_every_step_of_a_launch(kind: str, gang: str | None, tmp_path: Path) -> None:
    at = 0
    done: set[bool] = set()
    while len(done) < 2:
        at += 1
        assert at < 40
        for after in {False, True} - done:
            with stage_of(kind, tmp_path / f"{at}-{after}") as stage:
                wanted = requests(stage, ["spot-1", "spot-2"], gang=gang)
                killer = Killer(at, after)
                provider: Any = stage.provider
                for name in STEPS[kind]:
                    killer.wrap(provider.api, name)
                killer.wrap(provider.journal, "save")
                try:
                    provider.launch(wanted)
                    done.add(after)
                except Killed:
                    pass
                stage.restart()
                known = {i.instance_id for i in listed(stage).values()}
                assert set(stage.living()) <= known, f"step {at}: a machine that nobody knows"
                answers = patiently(stage, wanted)
                assert [type(a) for a in answers] == [Launched] * 2, f"step {at}"
                assert sorted(stage.living().values()) == ["spot-1", "spot-2"], f"step {at}"
                assert {a.instance_id for a in answers if isinstance(a, Launched)} == set(stage.living())
    assert at > 3, "a launch has more steps than that"
