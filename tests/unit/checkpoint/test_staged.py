"""An ordinary checkpoint tells how long the program stood still for it; what is waited for anyway tells nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from job_wrapper.checkpoint import Checkpointer
from tests.unit.checkpoint.training import open_run


def test_the_pause_is_told_with_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = open_run(tmp_path)
    told: list[tuple[int, float]] = []
    monkeypatch.setattr(committer, "staged", lambda seq, seconds: told.append((seq, seconds)))
    with Checkpointer(x=torch.zeros(1000), committer=committer) as checkpoint:
        for number in range(1, 3):
            committer.ask()
            checkpoint.step()
            while checkpoint._saving is not None:
                time.sleep(0.005)
            assert [seq for seq, _ in told] == list(range(1, number + 1))
        assert all(seconds >= 0 for _, seconds in told)
        committer.ask(urgent=True)
        checkpoint.step()
    assert len(told) == 2
