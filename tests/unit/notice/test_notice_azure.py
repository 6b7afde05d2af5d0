"""Azure's scheduled events, watched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from job_wrapper.notice.azure import AzureSource, parse_events, parse_time
from tests.fixtures.imds import EVENTS, INSTANCE, Imds
from tests.unit.notice.listening import Listening

Listen = Callable[..., Listening]
BEFORE = "Mon, 19 Sep 2026 18:29:47 GMT"
DEADLINE = 1789842587.0


def event(name: str = "e1", **more: Any) -> dict[str, Any]:
    return {
        "EventId": name,
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["VM-1"],
        "EventStatus": "Scheduled",
        "NotBefore": BEFORE,
        **more,
    }


def document(*events: Any) -> str:
    return json.dumps({"DocumentIncarnation": 2, "Events": list(events)})


def azure(service: Imds, node: str = "") -> AzureSource:
    service.pages.setdefault(INSTANCE, json.dumps({"compute": {"name": "vm-1"}}))
    service.pages.setdefault(EVENTS, document())
    return AzureSource(service.url, node, pause=0.02)


def test_notice_is_heard_once_and_withdrawn_when_it_vanishes(service: Imds, listen: Listen) -> None:
    ear = listen(azure(service))
    ear.looks()
    service.pages[EVENTS] = document(event())
    ear.until(lambda: ear.heard)
    ear.looks()
    (notice,) = ear.heard
    assert notice is not None
    assert (notice.provider, notice.kind, notice.deadline) == ("azure", "reclaim", DEADLINE)
    assert parse_time(BEFORE) == DEADLINE
    service.pages[EVENTS] = document()
    ear.until(lambda: len(ear.heard) == 2)
    assert ear.heard[1] is None


@pytest.mark.parametrize(
    "foreign",
    [
        event(Resources=["vm-2"]),
        event(Resources=["vm-11", "xvm-1"]),
        event(Resources=[]),
        event(EventType="Party"),
        event(Resources=[1, None, ["vm-1"]]),
    ],
)
def test_what_is_not_ours_is_none_of_our_business(service: Imds, listen: Listen, foreign: dict[str, Any]) -> None:
    service.pages[EVENTS] = document(foreign)
    ear = listen(azure(service))
    ear.looks()
    assert ear.heard == []
    assert ear.log == []


def test_machine_known_by_its_node_until_it_tells_its_name(service: Imds, listen: Listen) -> None:
    service.pages[INSTANCE] = (500, "")
    service.pages[EVENTS] = document(event("other"))
    ear = listen(azure(service, node="Spot-7"))
    ear.looks()
    assert ear.heard == []
    service.pages[EVENTS] = document(event("other"), event("mine", Resources=["spot-7"]))
    ear.until(lambda: ear.heard)
    assert ear.heard[0] is not None
    assert ear.heard[0].source_id == "Preempt:mine"


def test_started_early_leaves_less_time(service: Imds, listen: Listen) -> None:
    now = DEADLINE - 25
    service.pages[EVENTS] = document(event())
    ear = listen(azure(service), clock=lambda: now)
    ear.until(lambda: ear.heard)
    service.pages[EVENTS] = document(event(EventStatus="Started", NotBefore=""))
    ear.until(lambda: len(ear.heard) == 2)
    ear.looks()
    first, second = ear.heard
    assert first is not None
    assert second is not None
    assert (second.source_id, second.arrived, second.deadline) == (first.source_id, first.arrived, now)


def test_started_at_its_time_is_nothing_new(service: Imds, listen: Listen) -> None:
    service.pages[EVENTS] = document(event())
    ear = listen(azure(service), clock=lambda: DEADLINE)
    ear.until(lambda: ear.heard)
    service.pages[EVENTS] = document(event(EventStatus="Started", NotBefore=""))
    ear.looks()
    assert len(ear.heard) == 1


def test_earliest_of_several_counts(service: Imds, listen: Listen) -> None:
    later = "Mon, 19 Sep 2026 19:29:47 GMT"
    service.pages[EVENTS] = document(event("late", NotBefore=later), event("soon"))
    ear = listen(azure(service))
    ear.until(lambda: ear.heard)
    service.pages[EVENTS] = document(event("late", NotBefore=later))
    ear.until(lambda: len(ear.heard) == 2)
    ear.looks()
    assert [n and n.source_id for n in ear.heard] == ["Preempt:soon", "Preempt:late"]


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy", "Freeze"])
def test_the_other_types_warn(kind: str) -> None:
    look = parse_events(document(event(EventType=kind), event("e2", EventType=kind, NotBefore="")), {"vm-1"}, 1.0)
    assert [(n.kind, n.deadline) for n in look.notices] == [("maintenance", DEADLINE), ("maintenance", None)]


@pytest.mark.parametrize(
    "page",
    [
        "",
        "[]",
        "{}",
        '{"Events":{}}',
        "<html></html>",
        "[" * 60000,
        document(None),
        document({}),
        document(event(NotBefore="tomorrow")),
        document(event(EventStatus="Dancing")),
        document(event(EventId=7)),
        document(event(Resources="vm-1")),
        (429, ""),
        (500, ""),
        (404, document(event())),
    ],
)
def test_nonsense_is_neither_a_notice_nor_a_withdrawal(
    service: Imds, listen: Listen, page: str | tuple[int, str]
) -> None:
    ear = listen(azure(service))
    service.pages[EVENTS] = page
    ear.looks()
    assert ear.heard == []
    assert len(ear.log) == 1
    service.pages[EVENTS] = document(event("good"))
    ear.until(lambda: ear.heard)
    service.pages[EVENTS] = page
    ear.looks()
    assert len(ear.heard) == 1


def test_unreadable_event_does_not_hide_another(service: Imds) -> None:
    look = parse_events(document(None, event()), {"vm-1"}, 1.0)
    assert [n.source_id for n in look.notices] == ["Preempt:e1"]
    assert not look.complete
