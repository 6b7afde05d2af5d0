"""``describe`` and ``attempts`` on a run that was ended for an interruption (``--on-interruption fail``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Said, Site


def test_notice_reason_and_the_way_on(site: Site, spotburst: Callable[..., Said]) -> None:
    claim = site.claim("123")
    site.tick(10)
    site.commit(claim, 5, b"x", resumed=None)
    arrived = site.tick(5)
    site.tick(2)
    site.commit(claim, 7, b"y", urgent=True)
    notice = {"provider": "aws", "kind": "reclaim", "source_id": "s", "arrived": arrived, "deadline": arrived + 120}
    claim.end(91, "Preempted", {"arrived": arrived, "notice": notice})
    out = spotburst("describe", "123").out
    for words in (
        "notice: aws reclaim, 2 min ahead",
        "the run ends with exit code 91: Preempted",
        "The checkpoint of step 7 stands: a new job with `spotburst run --run 123 …` goes on from it",
    ):
        assert words in out
    [attempt] = json.loads(spotburst("attempts", "123", "--json").out)
    assert (attempt["why"], attempt["exit_code"]) == ("Preempted", 91)
    assert attempt["notice_to_commit"] == pytest.approx(2.0)
