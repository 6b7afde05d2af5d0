"""Reclaim notices of Azure: scheduled events (documentation, "Azure Metadata Service: Scheduled Events for Linux VMs").

``Preempt`` comes 30 s ahead, best effort. Events of other machines of the same group come too. ``NotBefore`` is empty once an event has
started, and an event that is over vanishes: there is no word for "completed". The first call turns the service on and may take two minutes.
"""

from __future__ import annotations

import json
import time
from calendar import timegm
from collections.abc import Callable, Collection
from typing import Any

from job_wrapper.notice.http import Client, Stopped
from job_wrapper.notice.types import Kind, Notice
from job_wrapper.notice.watch import Look

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
INSTANCE = "/metadata/instance?api-version=2021-02-01"
HEADERS = {"Metadata": "true"}
SECONDS = 5.0
FIRST_SECONDS = 130.0
"""For the first call: "up to two minutes"."""
PAUSE = 0.9
"""A little less than the second that Azure advises, so that a notice is heard within one."""
_KINDS: dict[str, Kind] = {
    "Preempt": "reclaim",
    "Terminate": "reclaim",
    "Reboot": "maintenance",
    "Redeploy": "maintenance",
    "Freeze": "maintenance",
}


def parse_time(text: str) -> float:
    """``Mon, 19 Sep 2016 18:29:47 GMT`` to Unix seconds. Raises ``ValueError``."""
    return float(timegm(time.strptime(text.strip(), "%a, %d %b %Y %H:%M:%S GMT")))


def parse_events(body: str, names: Collection[str], now: float) -> Look:
    """What the document says of the machine of these names (in lower case). Raises ``ValueError`` when it is no such document. Pure."""
    data = json.loads(body)
    events = data.get("Events") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise ValueError(f"scheduledevents: no list of Events: {body[:80]!r}")
    found: list[Notice] = []
    faults: list[str] = []
    for event in events:
        try:
            notice = _notice(event, names, now)
        except ValueError as error:
            faults.append(f"scheduledevents: {error}")
            continue
        if notice is not None:
            found.append(notice)
    # An event that can't be read may be the very one that stood before.
    return Look(tuple(found), not faults, tuple(faults))


def _notice(event: Any, names: Collection[str], now: float) -> Notice | None:
    """None: another machine's, or a type that means nothing to a job. Raises ``ValueError`` when it can't be told."""
    if not isinstance(event, dict):
        raise ValueError("an event is no object")
    kind, name, resources = event.get("EventType"), event.get("EventId"), event.get("Resources")
    if not isinstance(kind, str) or not isinstance(resources, list):
        raise ValueError(f"an event without type or resources: {str(event)[:80]}")
    if kind not in _KINDS or not any(isinstance(r, str) and r.lower() in names for r in resources):
        return None
    status, before = event.get("EventStatus"), event.get("NotBefore")
    if not isinstance(name, str) or not name or status not in ("Scheduled", "Started"):
        raise ValueError(f"{kind} with id {str(name)[:40]!r} and status {str(status)[:40]!r}")
    if isinstance(before, str) and before.strip():
        deadline: float | None = parse_time(before)
    else:
        # Under way: no time is left. What only warns has no time to tell.
        deadline = now if _KINDS[kind] == "reclaim" else None
    return Notice("azure", _KINDS[kind], f"{kind}:{name}", now, deadline, f"{kind} {status}".lower())


class AzureSource:
    """See ``Source``. ``node``: the name to go by until the service has told the machine's own. Raises ``ValueError`` for a bad ``url``."""

    provider = "azure"

    def __init__(self, url: str, node: str = "", *, pause: float = PAUSE) -> None:
        self.pause = pause
        self._client = Client(url)
        self._name = ""
        self._node = node.lower()
        self._answered = False

    def afresh(self) -> None:
        """Nothing here waits for a change."""

    def look(self, clock: Callable[[], float], stopped: Stopped) -> Look:
        """See ``Source``."""
        if not self._name:
            self._name = self._own_name(stopped)
        seconds = SECONDS if self._answered else FIRST_SECONDS
        answer = self._client.ask("GET", EVENTS, HEADERS, seconds, stopped)
        if answer.status != 200:
            raise ValueError(f"scheduledevents: HTTP {answer.status}")
        names = {self._name or self._node} - {""}
        look = parse_events(answer.body, names, clock())
        self._answered = True
        return look

    def _own_name(self, stopped: Stopped) -> str:
        """This machine's, in lower case; "" where it can't be had now."""
        try:
            answer = self._client.ask("GET", INSTANCE, HEADERS, SECONDS, stopped)
            data = json.loads(answer.body) if answer.status == 200 else {}
            name = data["compute"]["name"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return ""
        return name.lower() if isinstance(name, str) else ""
