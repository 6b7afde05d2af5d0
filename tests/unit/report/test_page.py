"""The page in a real browser: of a run that was really made, and of one whose every word is meant to harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from job_wrapper.store.io_types import Kind
from tests.fixtures.browser import Look, chromium
from tests.unit.cli.conftest import Said, Site
from tests.unit.run.programs import trained

if TYPE_CHECKING:
    from tests.unit.run.conftest import Room

HOSTILE = "\"'><img src=x onerror=alert(1)></title></style><script>alert(2)</script>{{ 7 * 7 }}\u202e\x1b[31m&lt;"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def test_the_page_of_a_real_run(browser: Any, room: Room, spotburst: Callable[..., Said], tmp_path: Path) -> None:
    trained(room, 40)
    page = tmp_path / "report.html"
    assert spotburst("report", "12", "--uri", room.uri, "--cluster", "c", "--html", str(page)).code == 0

    for options in (
        {},
        {"color_scheme": "dark"},
        {"viewport": {"width": 360, "height": 700}},
        {"viewport": {"width": 2000, "height": 900}},
    ):
        look = Look(browser, page.as_uri(), **options)
        assert look.said == []
        assert look.asked == [page.as_uri()]
        assert look.does_not_fit() == []
        look.close()

    look = Look(browser, page.as_uri())
    bars = look.page.evaluate(
        """() => {
          const svg = document.getElementById('bars'), box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
          const number = text => text === undefined ? null : Number(text);
          const axis = name => box.left + Number(svg.dataset[name]) * scale;
          const places = [...svg.querySelectorAll('[data-begin], [data-time]')].map(bar => {
            const own = bar.getBoundingClientRect();
            return {kind: bar.getAttribute('class'), begin: number(bar.dataset.begin), end: number(bar.dataset.end), time: number(bar.dataset.time), left: own.left, right: own.right};
          });
          return {left: axis('left'), right: axis('right'), begin: +svg.dataset.begin, end: +svg.dataset.end, places};
        }"""
    )
    entries = room.log()

    def x(when: float) -> float:
        share = (when - bars["begin"]) / (bars["end"] - bars["begin"])
        return float(bars["left"] + share * (bars["right"] - bars["left"]))

    claims = [e for e in entries if e.kind is Kind.CLAIM]
    assert bars["begin"] == claims[0].body["started_at"]
    assert bars["end"] == entries[-1].time
    starts = [bar for bar in bars["places"] if bar["kind"] == "starts"]
    assert [bar["begin"] for bar in starts] == [claim.body["started_at"] for claim in claims]
    assert {bar["kind"] for bar in bars["places"]} >= {"starts", "works", "leaves", "waits", "urgent", "notice"}
    for bar in bars["places"]:
        if bar["begin"] is not None:
            assert (bar["left"], bar["right"]) == (
                pytest.approx(x(bar["begin"]), abs=1),
                pytest.approx(x(bar["end"]), abs=1),
            )
        else:
            assert (bar["left"] + bar["right"]) / 2 == pytest.approx(x(bar["time"]), abs=1.5)
    commits = [e for e in entries if e.kind is Kind.COMMIT]
    assert [b["time"] for b in bars["places"] if b["kind"] in ("commit", "urgent")] == [e.time for e in commits]
    assert look.page.locator("figure h3").all_text_contents() == ["steps", "loss", "rate"]
    assert look.page.locator("figure polyline").count() >= 4
    # By keyboard: each attempt and each part that scrolls can be reached.
    reached = set()
    for _ in range(8):
        look.page.keyboard.press("Tab")
        reached.add(look.page.evaluate("document.activeElement.tagName"))
    assert {"g", "DIV", "A"} <= reached
    look.page.emulate_media(media="print")
    assert look.does_not_fit() == []
    look.close()


def test_nothing_that_others_wrote_is_taken_for_markup(
    browser: Any, site: Site, spotburst: Callable[..., Said], tmp_path: Path
) -> None:
    claim = site.claim("9", node=HOSTILE)
    site.tick(10)
    site.commit(claim, 5, b"x", resumed=None)
    site.tick(5)
    claim.restore_failed(1, HOSTILE)
    claim.interrupted(HOSTILE, {"arrived": site.now, "notice": {"provider": HOSTILE, "kind": HOSTILE}})
    site.tick(5)
    second = site.claim("9", 1)
    second.end(3, HOSTILE, {"curves": {HOSTILE: [[1.0, 1, 1.0]]}, "interval": {"seconds": 60.0, "why": HOSTILE}})
    page = tmp_path / "report.html"
    assert spotburst("report", "9", "--html", str(page)).code == 0
    look = Look(browser, page.as_uri(), viewport={"width": 360, "height": 700})
    assert (look.said, look.asked, look.does_not_fit()) == ([], [page.as_uri()], [])
    assert look.page.locator("script, img, iframe, object, form").count() == 0
    assert look.page.locator("style").count() == 1
    text = look.page.locator("body").inner_text()
    assert "<img src=x onerror=alert(1)>" in text
    assert "{{ 7 * 7 }}" in text
    assert "\u202e" not in text and "\x1b" not in text
    # What an attacker might get in all the same would neither run nor call home.
    with (
        look.page.expect_event("requestfailed", timeout=120_000),
        look.page.expect_event("console", timeout=120_000),
    ):
        look.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://192.0.2.1/x\" onerror=\"alert(3)\">')"
        )
    look.page.wait_for_timeout(300)
    assert look.said and all("Content Security Policy" in line for line in look.said)
    assert look.refused == ["http://192.0.2.1/x: csp"]
    look.close()
