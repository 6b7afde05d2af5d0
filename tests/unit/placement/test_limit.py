"""The cost limit of a run: the nodeset's, and the job's own."""

from __future__ import annotations

import pytest

from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.placement import Knowledge, Need, Passed, Rules, plan
from slurm_plugin.placement.limit import CostLimit, cost_limit


@pytest.mark.parametrize(
    ("comment", "usual", "expected"),
    [
        ("", None, CostLimit()),
        ("", 10.0, CostLimit(10.0)),
        ("cost_limit=2.5", None, CostLimit(2.5, True)),
        ("for the paper, cost_limit=2.5; x", 10.0, CostLimit(2.5, True)),
        ("cost_limit=25", 10.0, CostLimit(10.0)),
        ("cost_limit=2.5 | spotburst: requeued", None, CostLimit(2.5, True)),
        ("spotburst: CostLimit: cost_limit=1", None, CostLimit()),
        ("mine | spotburst: write cost_limit=25", None, CostLimit()),
        ("no_cost_limit=1", 10.0, CostLimit(10.0)),
    ],
)
def test_the_lower_one_holds(comment: str, usual: float | None, expected: CostLimit) -> None:
    assert cost_limit(comment, Rules(cost_limit=usual)) == expected


@pytest.mark.parametrize("word", ["cost_limit=", "cost_limit=cheap", "cost_limit=-1", "cost_limit=nan", "cost_limit=0"])
def test_what_is_no_number_is_said_and_leaves_the_nodesets(word: str) -> None:
    found = cost_limit(word, Rules(cost_limit=10.0))
    assert (found.limit, found.of_job) == (10.0, False)
    assert word in found.fault


def test_what_has_no_price_is_not_bought_for_a_run_with_a_limit() -> None:
    known, unknown = (Offering("sim", "r", zone, "t", Market.SPOT) for zone in "ab")
    paid = Offering("sim", "r", "b", "t", Market.RESERVATION)
    found = plan([unknown, known, paid], {}, 0.0, need=Need(capped=True), known=Knowledge({known.id: 1.0}))
    assert found.ready == (known.id, paid.id)
    assert [(c.offering_id, c.kind) for c in found.passed] == [(unknown.id, Passed.RULE)]
    assert "price is not known" in found.passed[0].why
