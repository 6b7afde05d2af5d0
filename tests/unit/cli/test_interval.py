"""``describe`` tells the interval in force, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from job_wrapper.interval import UNMEASURED
from job_wrapper.store import write_manifest
from slurm_plugin.cli import story

if TYPE_CHECKING:
    from conftest import Said, Site


def test_the_newest_interval_and_its_reason(site: Site, spotburst: Callable[..., Said]) -> None:
    claim = site.claim("123")
    assert json.loads(spotburst("describe", "123", "--json").out)["interval"] is None
    site.commit(claim, 5, b"x")
    told: dict[str, Any] = {"seconds": 93.0, "why": "a save stops the program 0.1 s", "auto": True}
    for step, body in ((6, {"interval": told | {"seconds": 600.0}}), (7, {"interval": told})):
        manifest = write_manifest(site.store, claim.run, claim.epoch, claim.data_prefix, step=step, parts={})
        claim.commit(manifest, step=step, body=body)
    claim.interrupted("aws reclaim", {})
    assert json.loads(spotburst("describe", "123", "--json").out)["interval"] == {
        "seconds": 93.0,
        "why": "a save stops the program 0.1 s",
    }
    out = spotburst("describe", "123").out
    assert "Interval" in out
    assert "1 min 33 s: a save stops the program 0.1 s" in out
    claim.end(0, "Finished")
    assert "Interval" not in spotburst("describe", "123").out, "there is no next one"


def test_an_entry_that_is_older_than_its_own_measurement_says_so(site: Site) -> None:
    claim = site.claim("123")

    def told(**body: Any) -> str:
        body |= {"interval": {"seconds": 600.0, "why": UNMEASURED, "auto": True}, "seconds": 3.0}
        manifest = write_manifest(site.store, claim.run, claim.epoch, claim.data_prefix, step=1, parts={})
        found = story.interval([claim.commit(manifest, step=1, body=body)])
        assert found is not None
        return found.why

    first = told(requested_at=5.0, urgent=False)
    assert first == "until the attempt's first save, which took 3.0 s; since then it goes by how long saves take"
    for body in ({"requested_at": None, "urgent": False}, {"requested_at": 5.0, "urgent": True}):
        assert told(**body) == "how long a save takes is not known yet, since only the ones at the interval are timed"
