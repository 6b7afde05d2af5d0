"""Scenes played on one cluster at the same time, each in a thread of its own, since they mostly wait."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tests.cluster.counting import Stage
from tests.fixtures import debian13
from tests.fixtures.unmet import unmet

Scene = Callable[[Stage], None]
KILL_WAIT = 30
"""Slurm's own. What an attempt still does in that time scenes look at; with so many jobs at once it takes more than a private cluster's 5 s."""


def scenes(*modules: ModuleType) -> dict[str, Scene]:
    """A module's functions that take a stage and nothing else, by name."""
    return {
        name: function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and list(inspect.signature(function).parameters) == ["stage"]
        if name != "prepare"
    }


def slurm_root(version: str) -> Path | None:
    """The prefix of that Slurm; None for this machine's own."""
    if version == "22.05":
        return None
    if why := debian13.missing():
        unmet(why)
    return debian13.slurm_prefix()


@contextmanager
def played(
    request: pytest.FixtureRequest, stage: Stage, known: Mapping[str, Scene]
) -> Iterator[dict[str, Future[None]]]:
    """All scenes of which a chosen test of the requesting module has the name, begun."""
    chosen = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
        if "name" in item.callspec.params
    }
    with ThreadPoolExecutor(max(1, len(chosen))) as pool:
        scenes = {name: pool.submit(known[name], stage) for name in sorted(chosen)}
        try:
            yield scenes
        finally:
            if not all(scene.done() for scene in scenes.values()):
                # Ctrl-C: what the scenes wait for does not come any more, and there are few seconds left to take it all down.
                pool.shutdown(wait=False, cancel_futures=True)
                stage.cluster.stop()
