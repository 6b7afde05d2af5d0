"""What a report tells of a run: its time adds up, its sums are right, and what can't be known is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.curves import BODY
from job_wrapper.store.io_types import Entry, Kind, Summary, Writer
from slurm_plugin.cli.output import moment
from slurm_plugin.cli.story import interval
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import Charge
from slurm_plugin.prices import Cost
from slurm_plugin.report import html
from slurm_plugin.report.curves import SHOWN, curves, steps
from slurm_plugin.report.draw import curve_plot, steps_plot, time_line
from slurm_plugin.report.record import Doing, record
from slurm_plugin.report.whole import whole
from slurm_plugin.timeline import attempts, gap
from tests.unit.cli.conftest import START, Said, Site

Spotburst = Callable[..., Said]


def entry(seq: int, kind: Kind, epoch: int, when: float, **body: object) -> Entry:
    return Entry(seq, kind, epoch, Writer("c", "1", epoch - 1, 0, "host", str(epoch)), when, Summary(epoch=epoch), body)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Entry], float]:
    """A log of some attempts, each ending in one of the ways there are; and a moment after it."""
    made: list[Entry] = []
    now, step = 1000.0, 0
    few = st.floats(0, 100)
    for epoch in range(1, draw(st.integers(1, 5)) + 1):
        now += draw(few)
        began = now
        now += draw(few)
        made.append(entry(len(made), Kind.CLAIM, epoch, now, started_at=began))
        now += draw(few)
        told: dict[str, object] = {"resumed_at": now, "restored_step": step or None} if draw(st.booleans()) else {}
        for _ in range(draw(st.integers(0, 3))):
            now += draw(few)
            step += draw(st.integers(0, 10))
            made.append(entry(len(made), Kind.COMMIT, epoch, now, step=step, urgent=draw(st.booleans()), **told))
            told = {}
        now += draw(few)
        how = draw(st.sampled_from(["interrupted", "suspended", "end", "failed", "vanished"]))
        if how == "interrupted":
            made.append(entry(len(made), Kind.INTERRUPTED, epoch, now, reason="reclaim", arrived=now - 1, **told))
        elif how == "suspended":
            made.append(entry(len(made), Kind.SUSPENDED, epoch, now, **told))
        elif how != "vanished":
            made.append(entry(len(made), Kind.END, epoch, now, exit_code=int(how == "failed"), reason="x", **told))
    return made, now + draw(few)


@given(logs(), st.none() | st.floats(0, 2000))
def test_each_second_is_told_once(log: tuple[list[Entry], float], submitted: float | None) -> None:
    entries, now = log
    found = record(entries, attempts(entries), now, submitted)
    spans = [span for row in found.rows for span in row.spans]
    assert all(span.seconds > 0 for span in spans)
    until = found.begin
    for span in spans:
        assert span.begin == until
        until = span.end
    assert until == found.end
    totals = found.totals
    leaves = sum(row.seconds(Doing.LEAVES) for row in found.rows)
    told = totals.waited + totals.started + totals.worked + totals.lost + totals.silent + leaves
    assert told == pytest.approx(totals.elapsed)
    assert 0 <= totals.saved <= totals.worked * len(found.rows)
    drawn = time_line(found)
    for bar in (bar for row in drawn.rows for bar in row.bars):
        assert drawn.left <= bar.x <= bar.x + bar.width <= drawn.right + 1e-6


def test_sums_of_a_run_that_was_reclaimed_and_lost(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    told = json.loads(spotburst("report", "123", "--json").out)
    # Each program went on 1 s before its first commit; the first attempt committed at its notice.
    assert told["seconds"] == {
        "elapsed": 122.0, "waited": 3.5, "started": 9.5 + 9.5 + 9.5, "worked": 27.0 + 1.0 + 2.0, "lost": 0.0,
        "silent": 59.5, "saved": 27.0 + 28.0, "saves": 6, "save_seconds": None,
    }  # fmt: skip
    first = told["attempts"][0]
    assert [(s["doing"], s["begin"] - START, s["end"] - START) for s in first["spans"]] == [
        ("starts", -0.5, 9.0), ("works", 9.0, 36.0), ("leaves", 36.0, 36.5),
    ]  # fmt: skip
    assert [(m["kind"], m["time"] - START, m["step"]) for m in first["marks"]] == [
        ("commit", 10, 10), ("commit", 20, 20), ("commit", 30, 30), ("notice", 35, None), ("urgent", 36, 35), ("end", 36.5, None),
    ]  # fmt: skip
    assert [line["points"][-1][1] for line in told["steps"]] == [35, 40, 50]
    assert any("When attempt 2 ended is not known" in note for note in told["notes"])


def test_as_text(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    said = spotburst("report", "123")
    assert said.code == 0
    assert "Work kept  30 s" in said.out
    assert "Work lost  at most 1 min" in said.out
    assert "Spared     55 s of work, kept by checkpoints" in said.out
    bars = [line for line in said.out.splitlines() if line.startswith(("  1 spot-1", "  2 spot-2", "  3 spot-3"))]
    assert ["#" in bars[0], "?" in bars[1], bars[2].endswith("finished")] == [True, True, True]
    assert "\x1b" not in said.out


def priced(site: Site) -> Ledger:
    prices = site.folder / "prices.yaml"
    prices.write_text(
        "date: 2026-11-30\nmachines: [{provider: local, instance_type: small, spot: 36, on_demand: 72}]\n"
    )
    burst = site.folder / "burst.yaml"
    burst.write_text(burst.read_text() + f"prices: {prices}\n")
    (site.folder / "state").mkdir()
    return Ledger.open(site.folder / "state/ledger.db", clock=lambda: site.now)


def test_money_of_all_machines_where_the_ledger_tells_them(site: Site, spotburst: Spotburst) -> None:
    ledger = priced(site)
    site.reclaimed_twice()
    for restart, node, began, ended in ((0, "spot-1", 0, 100), (0, "spot-2", 0, 100), (1, "spot-1", 100, 200)):
        charge = Charge(123, restart, node, START + began)
        ledger.charge_begins(charge, "local/local/a/small/spot", 36.0)
        ledger.charge_ends(charge, START + ended)
    ledger.event("told", "the manager's word", job=123)
    ledger.close()
    told = json.loads(spotburst("report", "123", "--json").out)
    # Two machines for the first attempt's 37 s, one for each of the others.
    hours = [attempt["cost"]["hours"] for attempt in told["attempts"]]
    assert hours[0] == pytest.approx(2 * 37 / 3600)
    assert told["money"]["machines"] == 2
    assert told["money"]["paid"] == pytest.approx(sum(hours) * 36)
    assert told["money"]["on_demand"] == pytest.approx(sum(hours) * 72)
    assert told["money"]["saved"] == pytest.approx(36 * 2 * told["seconds"]["saved"] / 3600)
    whole = json.loads(spotburst("cost", "123", "--json").out)
    assert f"{told['money']['paid']}" in json.dumps(whole), "as `spotburst cost` has it"
    assert "manager: the manager's word" in [event["text"] for event in told["timeline"]]
    assert not any("ledger" in note for note in told["notes"])


def test_without_rights_on_the_ledger_the_rest_is_told_and_that_is_said(
    site: Site, spotburst: Spotburst, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced(site).close()
    site.reclaimed_twice()
    if os.geteuid() == 0:  # who may read everything: the refusal is the system's all the same
        monkeypatch.setattr(Path, "is_file", refused(site.folder / "state/ledger.db"))
    else:
        (site.folder / "state").chmod(0)
    told = json.loads(spotburst("report", "123", "--json").out)
    assert told["money"]["paid"] is not None
    assert told["money"]["machines"] == 1
    assert any("ledger can't be read by this user" in note for note in told["notes"])
    assert spotburst("report", "123", "--html", str(site.folder / "page.html")).code == 0


def refused(path: Path) -> Callable[[Path], bool]:
    real = Path.is_file

    def is_file(self: Path) -> bool:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    return is_file


def test_curves_across_attempts_tell_what_was_done_again() -> None:
    def points(first: int, last: int, began: float = 1.0) -> dict[str, object]:
        return {BODY: {"loss": [[began + step / 10, step, 1000.0 / step] for step in range(first, last)]}}

    entries = [
        entry(0, Kind.CLAIM, 1, 1.0),
        entry(1, Kind.COMMIT, 1, 30.0, step=29, **points(1, 30)),
        entry(2, Kind.INTERRUPTED, 1, 40.0, reason="lost", **points(30, 40)),
        entry(3, Kind.CLAIM, 2, 50.0),
        entry(4, Kind.COMMIT, 2, 70.0, step=49, resumed_at=51.0, restored_step=29, **points(30, 50, 51.0)),
    ]
    (curve,) = curves(entries, attempts(entries))
    assert [(one.epoch, one.undone, one.points[0].step, one.points[-1].step) for one in curve.lines] == [
        (1, False, 1, 29), (1, True, 30, 39), (2, False, 30, 49),
    ]  # fmt: skip
    assert [p.step for p in curve.points] == list(range(1, 50))
    assert [line.points[0].step for line in steps(entries, attempts(entries))] == [0, 29]
    plot = curve_plot(curve)
    assert plot is not None
    assert [path.undone for path in plot.paths] == [False, True, False]
    named = curve_plot(replace(curve, name="steps"))
    by_time = steps_plot(steps(entries, attempts(entries)), 1.0)
    assert named is not None
    assert by_time is not None
    assert (named.against, by_time.against) == ("by step", "by time since the begin"), (
        "whatever a program calls its values"
    )


def test_a_long_run_is_thinned_and_keeps_its_shape() -> None:
    entries = [entry(0, Kind.CLAIM, 1, 1.0)]
    for seq in range(1, 200):
        body = {BODY: {"loss": [[float(s), s, float(s)] for s in range(seq * 64, seq * 64 + 64)]}}
        entries.append(entry(seq, Kind.COMMIT, 1, float(seq * 64 + 64), step=seq * 64 + 63, **body))
    (curve,) = curves(entries, attempts(entries))
    shown = [p for line in curve.lines for p in line.points]
    assert SHOWN / 2 < len(shown) <= SHOWN
    assert all(p.value is not None and abs(p.value - p.step) <= 64 for p in shown)
    (line,) = steps(entries, attempts(entries))
    assert len(line.points) <= SHOWN + 1
    assert line.points[-1].step == 199 * 64 + 63


def test_what_can_not_be_written_is_said(site: Site, spotburst: Spotburst) -> None:
    site.reclaimed_twice()
    for target, why in ((site.folder, "is a folder"), (site.folder / "no/such/place.html", "can't be written")):
        said = spotburst("report", "123", "--html", str(target))
        assert (said.code, said.out) == (2, "")
        assert why in said.err
    assert spotburst("report", "123", "--html", "-", "--json").code == 2
    assert spotburst("report", "123", "--html", "-").out.startswith("<!doctype html>")
    assert [p.name for p in site.folder.iterdir() if "html" in p.name] == []


def test_a_job_that_has_made_no_attempt_has_a_report_that_says_so(site: Site, spotburst: Spotburst) -> None:
    claim = site.claim("70")
    (site.folder / "store/demo/70/main/log/00000000.json").unlink()
    assert claim.epoch == 1
    for options in ([], ["--json"], ["--html", "-"]):
        said = spotburst("report", "70", *options)
        assert (said.code, said.err) == (0, "")


ANYTHING = st.sampled_from(
    [
        None,
        True,
        -1,
        5,
        1e300,
        -1e300,
        float("inf"),
        float("nan"),
        10**400,
        "",
        "x",
        "\ud800",
        [],
        {},
        [[]],
        {"seconds": 10**400},
    ]
)
KEYS = ["started_at", "machines", "step", "requested_at", "resumed_at", "restored_step", "seconds", "arrived", "notice", "exit_code", "interval", "node", "offering", "reason", BODY]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Kind)), st.dictionaries(st.sampled_from(KEYS), ANYTHING)), min_size=1, max_size=4
    )
)
def test_whatever_stands_in_a_log_it_can_be_told(told: list[tuple[Kind, dict[str, object]]]) -> None:
    """Whoever can write to the store may have put anything there."""
    entries = [entry(seq, kind, 1 + seq // 2, 1000.0 + seq, **body) for seq, (kind, body) in enumerate(told)]
    made = attempts(entries)
    costs = [Cost(1.0, 2.0, 3.0)] * len(made)
    page = whole("1", "s3://b", entries, made, None, [], costs, "USD", [one.machines for one in made], [], [], 2e9)
    html.render(page)
    for when, _ in page.story:
        moment(when)
    interval(entries)
    for before, after in pairwise(made):
        gap(before, after)


def test_a_moment_that_no_calendar_has() -> None:
    assert moment(1e18) == "1e+18 s since 1970"
