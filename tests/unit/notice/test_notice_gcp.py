"""Compute Engine's metadata, watched."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from job_wrapper.notice.gcp import MAINTENANCE, GcpSource
from tests.fixtures.imds import PREEMPTED, Imds
from tests.unit.notice.listening import Listening

Listen = Callable[..., Listening]


def gcp(service: Imds, **more: object) -> GcpSource:
    service.pages.setdefault(PREEMPTED, "FALSE")
    service.pages.setdefault(MAINTENANCE, "NONE")
    return GcpSource(service.url, pause=0.02, **{"wait": 60, **more})  # type: ignore[arg-type]


def waiting(service: Imds, ear: Listening) -> None:
    """A request waits at the server."""
    ear.until(lambda: any("wait_for_change" in q for q in service.queries))


def test_first_look_does_not_wait(service: Imds, listen: Listen) -> None:
    ear = listen(gcp(service))
    waiting(service, ear)
    assert "wait_for_change" not in service.queries[0]


def test_notice_ends_the_wait_and_is_heard_once(service: Imds, listen: Listen) -> None:
    ear = listen(gcp(service, wait=1), clock=lambda: 1000.0)
    waiting(service, ear)
    assert ear.heard == []
    service.pages[PREEMPTED] = "TRUE"
    ear.until(lambda: ear.heard)
    ear.looks(2)
    (notice,) = ear.heard
    assert notice is not None
    assert (notice.provider, notice.kind, notice.arrived, notice.deadline) == ("gcp", "reclaim", 1000.0, 1030.0)


def test_arrival_is_when_the_answer_came(service: Imds, listen: Listen) -> None:
    ear = listen(gcp(service))
    waiting(service, ear)
    changed = time.time()
    service.pages[PREEMPTED] = "TRUE"
    ear.until(lambda: ear.heard)
    assert ear.heard[0] is not None
    assert ear.heard[0].arrived >= changed


def test_standing_at_the_start(service: Imds, listen: Listen) -> None:
    service.pages[PREEMPTED] = "TRUE"
    ear = listen(gcp(service, notice=120.0), clock=lambda: 1000.0)
    ear.until(lambda: ear.heard)
    assert [n and n.deadline for n in ear.heard] == [1120.0]


def test_change_between_two_requests_is_not_waited_for(service: Imds, listen: Listen) -> None:
    ear = listen(gcp(service))
    waiting(service, ear)
    tags = {q.get("last_etag") for q in service.queries if "wait_for_change" in q}
    assert tags == {f"{hash((200, 'FALSE')):x}"}


def test_withdrawn(service: Imds, listen: Listen) -> None:
    ear = listen(gcp(service))
    service.pages[PREEMPTED] = "TRUE"
    ear.until(lambda: ear.heard)
    service.pages[PREEMPTED] = "FALSE"
    ear.until(lambda: len(ear.heard) == 2)
    assert ear.heard[1] is None


@pytest.mark.parametrize("page", ["", "true", "TRUEISH", "<html>TRUE</html>", (503, ""), (503, "TRUE"), (404, "FALSE")])
def test_nonsense_is_neither_a_notice_nor_a_withdrawal(
    service: Imds, listen: Listen, page: str | tuple[int, str]
) -> None:
    ear = listen(gcp(service))
    service.pages[PREEMPTED] = page
    ear.looks()
    assert ear.heard == []
    assert len(ear.log) == 1
    service.pages[PREEMPTED] = "TRUE"
    ear.until(lambda: ear.heard)
    service.pages[PREEMPTED] = page
    ear.looks()
    assert len(ear.heard) == 1


def test_server_that_waits_for_no_change(service: Imds, listen: Listen) -> None:
    service.ill = "deaf"
    ear = listen(gcp(service))
    ear.looks(8)
    service.pages[PREEMPTED] = "TRUE"
    ear.until(lambda: ear.heard)


def test_wait_that_ends_without_a_change_is_taken_up_again(service: Imds, listen: Listen) -> None:
    ear = listen(gcp(service, wait=0))
    ear.looks(8)
    assert ear.heard == []
    assert ear.log == []
    service.pages[PREEMPTED] = "TRUE"
    ear.until(lambda: ear.heard)


def test_maintenance_warns_each_time_anew(service: Imds, listen: Listen) -> None:
    ear = listen(gcp(service, wait=0))
    for _ in range(2):
        service.pages[MAINTENANCE] = "TERMINATE_ON_HOST_MAINTENANCE"
        ear.looks()
        service.pages[MAINTENANCE] = "NONE"
        ear.looks()
    assert [n and n.kind for n in ear.heard] == ["maintenance", "maintenance"]


def test_maintenance_page_that_fails_hides_nothing(service: Imds, listen: Listen) -> None:
    service.pages[MAINTENANCE] = (500, "")
    ear = listen(gcp(service, wait=0))
    ear.looks()
    service.pages[PREEMPTED] = "TRUE"
    ear.until(lambda: ear.heard)
