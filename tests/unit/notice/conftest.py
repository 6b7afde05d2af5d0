"""A metadata service, and watchers that listen to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from job_wrapper.notice import aws, azure, gcp, http, probe
from job_wrapper.notice.watch import Source
from tests.fixtures.imds import Imds, imds
from tests.unit.notice.listening import Listening


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """An answer of the service here is waited for, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (aws, azure, gcp, probe):
            patch.setattr(module, "SECONDS", 120.0)
        yield


@pytest.fixture
def service() -> Iterator[Imds]:
    with imds() as found:
        yield found


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Listening]]:
    """Makes listeners that end with the test."""
    monkeypatch.setattr(http, "SLICE", 0.02)
    made: list[Listening] = []

    def start(source: Source, **more: object) -> Listening:
        made.append(Listening(source, **more))
        return made[-1]

    yield start
    for one in made:
        one.end()
