"""A pass that has taken too long begins nothing more, and the next one does."""

from __future__ import annotations

import pytest

from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.manager.patience import LONGEST, Patience, patient


class Slow:
    def __init__(self) -> None:
        self.now, self.released = 0.0, 0

    def release(self, job_id: str) -> None:
        self.now += 9.0
        self.released += 1


def test_a_pass_over_a_slow_slurm_ends_and_the_next_goes_on() -> None:
    slow = Slow()
    patience = Patience(clock=lambda: slow.now)
    client = patient(slow, patience)  # type: ignore[arg-type]
    left = 12
    passes = []
    while left:
        patience.begin()
        began = slow.now
        while left:
            try:
                client.release("1")
            except SlurmUnavailable as error:
                assert "left to the next one" in str(error)
                break
            left -= 1
        passes.append(slow.now - began)
    assert slow.released == 12
    assert len(passes) == 3
    assert max(passes) < LONGEST + 9.0
    with pytest.raises(AttributeError):
        client.nothing_of_the_kind  # type: ignore[attr-defined]  # noqa: B018
