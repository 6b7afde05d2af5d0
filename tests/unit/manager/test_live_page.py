"""The page of the cluster in a real browser: it goes on by itself without flicker, and asks nobody but the manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slurm_plugin.manager.monitor import Monitor
from tests.fixtures.browser import Look, chromium
from tests.unit.manager.test_monitor import busy, ledger, site, start
from tests.unit.reconcile.views import job, node, view

__all__ = ["ledger", "site", "start"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def test_it_goes_on_by_itself_and_changes_only_what_differs(browser: Any, start: Callable[..., Monitor]) -> None:
    monitor = start(listening=True)
    monitor.passed(busy())
    url = f"http://127.0.0.1:{monitor.port}/"
    for options in ({}, {"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 700}}):
        look = Look(browser, url, **options)
        assert (look.said, look.does_not_fit()) == ([], [])
        look.close()
    look = Look(browser, url)
    page = look.page
    page.evaluate("document.querySelector('#nodes tr[data-key=\"n3 spot\"]').mark = 'the same row'")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#offerings-title'))")
    page.focus("#offerings-title ~ .scroll")
    page.evaluate("window.gone = 0; new MutationObserver(all => all.forEach(m => gone += m.removedNodes.length)).observe(document.getElementById('live'), {childList: true, subtree: true})")  # fmt: skip
    # Node 1 and its job go, node 3 stays and is well again, a job comes.
    monitor.passed(view([node("n3", "ALLOCATED")], [job(12, nodes=("n3",))]))
    page.locator("#jobs td", has_text="12").first.wait_for(timeout=120_000)
    page.locator("#refresh", has_text="every 2 seconds").wait_for(timeout=120_000)
    assert page.evaluate("document.querySelector('#nodes tr[data-key=\"n3 spot\"]').mark") == "the same row"
    assert page.evaluate("getSelection().toString()") == "Offerings"
    assert page.evaluate("document.activeElement.className") == "scroll"
    assert page.locator("#nodes tbody tr").count() == 1
    assert "silent" not in page.locator("#nodes").inner_text()
    assert page.evaluate("gone") < 60, "rows that went, not the page"
    assert {asked.rstrip("/") for asked in look.asked} <= {url.rstrip("/"), f"{url}favicon.ico"}
    monitor.stop()
    page.locator("#refresh", has_text="does not answer").wait_for(timeout=120_000)
    assert page.locator("#nodes tbody tr").count() == 1, "what is old stays to be read"
    assert all("Failed to load resource" in said for said in look.said)
    look.close()


def test_another_site_can_not_read_it(browser: Any, start: Callable[..., Monitor]) -> None:
    monitor = start(listening=True)
    monitor.passed(busy())
    look = Look(browser, "about:blank")
    look.page.set_content("<p>elsewhere</p>")
    read = """async mode => { try { return await (await fetch("http://127.0.0.1:%d/", {mode})).text(); } catch (error) { return "refused"; } }"""
    for mode in ("cors", "no-cors"):
        assert look.page.evaluate(read % monitor.port, mode) in ("refused", "")
    look.close()
