"""The log: what is repeated is said seldom, and each line has whom it concerns."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog

from job_wrapper.store.io_types import Kind
from slurm_plugin.manager.loop import know
from slurm_plugin.manager.say import AGAIN, BURST, Once, Seldomly, log, set_up_logging
from slurm_plugin.requeue import RunTail
from tests.unit.reconcile.views import job, view


def written(seldomly: Seldomly, event: str, **keys: Any) -> dict[str, Any] | None:
    try:
        return dict(seldomly(None, "warning", {"event": event, **keys}))
    except structlog.DropEvent:
        return None


def test_what_is_said_again_and_again_is_written_seldom_and_nothing_else_suffers() -> None:
    now = 0.0
    seldomly = Seldomly(lambda: now)
    seen = []
    for second in range(300):
        now = float(second)
        if (line := written(seldomly, "Drain: Slurm refused", node="n1", error=f"no {second}")) is not None:
            seen.append((second, line.get("left_out", 0)))
        if second == 30:
            assert all(written(seldomly, "Drain: Slurm refused", node=f"n{i}") for i in range(2, 2000))
            assert written(seldomly, "launched", node="n1")
    each = int(AGAIN)
    assert seen == [*((i, 0) for i in range(BURST)), (each, each - BURST), *((each * i, each - 1) for i in (2, 3, 4))]
    now += 10 * AGAIN
    assert [bool(written(seldomly, "Drain: Slurm refused", node="n1")) for _ in range(BURST + 1)].count(True) >= 1


def test_each_line_has_job_node_attempt_and_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    try:
        know(
            view(
                jobs=[job(7, nodes=("n1", "n2"), restart_count=2), job(8, "COMPLETED", nodes=("n2",))],
                runs={7: (RunTail("c/7/main", Kind.COMMIT, "7", 2, 2, 0, True, epoch=4),)},
            )
        )
        log.warning("node set down", node="n1")
        log.info("requeued", job="7")
        log.info("manager started")
        Once().fault("cloud aws", "away")
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    finally:
        know(view())
        structlog.reset_defaults()
    about = [{k: line.get(k) for k in ("node", "job", "attempt", "epoch")} for line in lines]
    assert about == [
        {"node": "n1", "job": "7", "attempt": 2, "epoch": 4},
        {"node": None, "job": "7", "attempt": 2, "epoch": 4},
        dict.fromkeys(("node", "job", "attempt", "epoch")),
        dict.fromkeys(("node", "job", "attempt", "epoch")),
    ]
    assert all(line["event"] and line["level"] and line["timestamp"] for line in lines)
