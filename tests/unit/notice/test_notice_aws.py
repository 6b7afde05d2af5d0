"""AWS's metadata, watched."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from job_wrapper.notice.aws import AwsSource, parse_action, parse_scheduled, parse_time
from job_wrapper.notice.types import Notice
from tests.fixtures.imds import ACTION, REBALANCE, Imds
from tests.unit.notice.listening import Listening

TERMINATE = '{"action":"terminate","time":"2026-05-02T08:22:00Z"}'
LIFECYCLE = "/latest/meta-data/autoscaling/target-lifecycle-state"
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
RETIREMENT = (
    '[{"NotBefore":"21 Jan 2019 09:00:43 GMT","Code":"instance-retirement","Description":"d",'
    '"EventId":"instance-event-0d59937288b749b32","NotAfter":"21 Jan 2019 09:17:23 GMT","State":"active"}]'
)
Listen = Callable[..., Listening]


def aws(service: Imds) -> AwsSource:
    return AwsSource(service.url, pause=0.02)


@pytest.mark.parametrize(("action", "kind"), [("terminate", "reclaim"), ("stop", "stop"), ("hibernate", "hibernate")])
def test_notice_is_heard_once(service: Imds, listen: Listen, action: str, kind: str) -> None:
    ear = listen(aws(service))
    ear.looks()
    assert ear.heard == []
    service.pages[ACTION] = TERMINATE.replace("terminate", action)
    ear.until(lambda: ear.heard)
    ear.looks()
    (notice,) = ear.heard
    assert notice is not None
    assert (notice.provider, notice.kind, notice.deadline) == ("aws", kind, 1777710120.0)


def test_identity_does_not_depend_on_who_looks_when() -> None:
    (first,), (second,) = parse_action(TERMINATE, 1.0), parse_action(TERMINATE, 2.0)
    assert first.source_id == second.source_id
    (other,) = parse_action(TERMINATE.replace("08:22", "08:23"), 1.0)
    assert other.source_id != first.source_id


def test_time() -> None:
    assert parse_time("2026-05-02T08:22:00Z") == 1777710120.0
    with pytest.raises(ValueError):
        parse_time("May 2nd")


def test_expired_token_is_renewed_once(service: Imds, listen: Listen) -> None:
    ear = listen(aws(service))
    ear.looks()
    service.expire()
    service.pages[ACTION] = TERMINATE
    ear.until(lambda: ear.heard)
    assert len([1 for _, _, status in service.asked if status == 401]) == 1
    assert len([1 for method, _, _ in service.asked if method == "PUT"]) == 2


@pytest.mark.parametrize(
    "page",
    [
        "",
        "null",
        "[]",
        "{",
        "[" * 60000,
        '{"action":"terminate"}',
        '{"action":["terminate"],"time":"2026-05-02T08:22:00Z"}',
        '{"action":"dance","time":"2026-05-02T08:22:00Z"}',
        '{"action":"terminate","time":"soon"}',
        (500, "oops"),
        (403, ""),
        (401, ""),
    ],
)
def test_nonsense_is_neither_a_notice_nor_a_withdrawal(
    service: Imds, listen: Listen, page: str | tuple[int, str]
) -> None:
    ear = listen(aws(service))
    service.pages[ACTION] = page
    ear.looks()
    assert ear.heard == []
    assert len(ear.log) == 1, "said once, not at every look"
    service.pages[ACTION] = TERMINATE
    ear.until(lambda: ear.heard)
    service.pages[ACTION] = page
    ear.looks()
    assert len(ear.heard) == 1


def test_withdrawn_only_after_several_looks_that_find_nothing(service: Imds, listen: Listen) -> None:
    service.pages[ACTION] = TERMINATE
    ear = listen(aws(service))
    ear.until(lambda: ear.heard)
    del service.pages[ACTION]
    ear.until(lambda: len(ear.heard) == 2)
    assert ear.heard[1] is None
    service.pages[ACTION] = TERMINATE
    ear.until(lambda: len(ear.heard) == 3)


def test_notice_known_before_is_not_told_again_but_its_withdrawal_is(service: Imds, listen: Listen) -> None:
    service.pages[ACTION] = TERMINATE
    ear = listen(aws(service), known=parse_action(TERMINATE, 5.0)[0])
    ear.looks()
    assert ear.heard == []
    del service.pages[ACTION]
    ear.until(lambda: ear.heard == [None])


def test_rebalance_is_a_warning_before_the_notice(service: Imds, listen: Listen) -> None:
    service.pages[REBALANCE] = '{"noticeTime":"2026-05-02T08:00:00Z"}'
    ear = listen(aws(service))
    ear.looks(20)
    assert [n and n.kind for n in ear.heard] == ["rebalance"]
    service.pages[ACTION] = TERMINATE
    ear.until(lambda: len(ear.heard) == 2)
    ear.looks(10)
    assert [n and n.kind for n in ear.heard] == ["rebalance", "reclaim"]


def test_group_that_ends_the_instance(service: Imds, listen: Listen) -> None:
    ear = listen(aws(service))
    service.pages[LIFECYCLE] = "InService"
    ear.looks()
    service.pages[LIFECYCLE] = "<html>Terminated</html>"
    ear.looks()
    assert ear.heard == []
    service.pages[LIFECYCLE] = "Terminated"
    ear.until(lambda: ear.heard)
    assert [(n and n.kind, n and n.deadline) for n in ear.heard] == [("reclaim", None)]
    service.pages[ACTION] = TERMINATE  # and the same moment has a date
    ear.until(lambda: len(ear.heard) == 2)
    ear.looks()
    assert ear.heard[1] == Notice(
        "aws", "reclaim", f"{ACTION}:terminate@2026-05-02T08:22:00Z", ear.heard[1].arrived, 1777710120.0, "terminate at 2026-05-02T08:22:00Z"
    )  # fmt: skip


def test_scheduled_events_warn(service: Imds, listen: Listen) -> None:
    service.pages[SCHEDULED] = RETIREMENT
    ear = listen(aws(service))
    ear.looks(12)
    (notice,) = ear.heard
    assert notice is not None
    assert (notice.kind, notice.deadline) == ("maintenance", 1548061243.0)
    assert "instance-event-0d59937288b749b32" in notice.source_id


def test_scheduled_events_that_are_over_or_unreadable_do_not_spoil_the_others() -> None:
    event = RETIREMENT[1:-1]
    body = f"[null, {event.replace('active', 'completed')}, {event.replace('21 Jan', '41 Foo')}, {{}}, {event}]"
    assert len(parse_scheduled(body, 1.0)) == 1
    assert parse_scheduled("[" + event.replace('"d"', '"[Canceled] d"') + "]", 1.0) == []


def test_one_page_that_fails_does_not_hide_the_notice(service: Imds, listen: Listen) -> None:
    service.pages[LIFECYCLE] = (500, "")
    service.pages[ACTION] = TERMINATE
    ear = listen(aws(service))
    ear.until(lambda: ear.heard)
    ear.looks()
    assert len(ear.heard) == 1


def test_asleep_while_the_agent_looks(service: Imds, listen: Listen) -> None:
    awake, asked = threading.Event(), threading.Event()

    def asleep() -> bool:
        asked.set()
        return not awake.is_set()

    service.pages[ACTION] = TERMINATE
    ear = listen(aws(service), asleep=asleep)
    assert asked.wait(60)
    assert service.asked == []
    awake.set()
    ear.until(lambda: ear.heard)
