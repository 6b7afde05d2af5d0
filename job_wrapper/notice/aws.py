"""Reclaim notices of AWS: the instance metadata service, version 2 (EC2 user guide, "Spot Instance interruption notices").

``spot/instance-action`` is 404 until a notice is given, then ``{"action":"terminate","time":"…Z"}``, about 120 s ahead, best effort.
``events/recommendations/rebalance`` comes earlier and promises nothing. ``autoscaling/target-lifecycle-state`` turns ``Terminated`` when an
Auto Scaling group ends the instance; ``events/maintenance/scheduled`` lists what is planned, days ahead.
"""

from __future__ import annotations

import json
import os
import re
import time
from calendar import timegm
from collections.abc import Callable
from typing import Any

from job_wrapper.notice.http import Answer, Client, Stopped
from job_wrapper.notice.types import Kind, Notice
from job_wrapper.notice.watch import Look

ACTION = "/latest/meta-data/spot/instance-action"
LIFECYCLE = "/latest/meta-data/autoscaling/target-lifecycle-state"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
TOKEN = "/latest/api/token"  # noqa: S105
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105
TOKEN_SECONDS = 21600
SECONDS = 2.0
"""For one request: the service is on the host itself."""
PAUSE = 1.0
"""AWS advises to ask every 5 s; of 120 s those are 4 % on average gone. Two requests a second are far below what the service takes
(1024 packets a second and interface)."""
WARNINGS_EVERY = 5
"""Looks: what only warns is asked as seldom as AWS advises."""
_KINDS: dict[str, Kind] = {"terminate": "reclaim", "stop": "stop", "hibernate": "hibernate"}


class Metadata:
    """GET with a session token, had with PUT. 401 means that it has expired."""

    def __init__(self, url: str) -> None:
        self._client = Client(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or url)
        self._token = ""

    def get(self, path: str, stopped: Stopped = lambda _: False) -> tuple[int, str]:
        """Status and body. Raises ``OSError`` when there is no answer."""
        if not self._token:
            self._renew(stopped)
        answer = self._get(path, stopped)
        if answer.status == 401:  # expired: once more with a new one, never in a loop
            self._renew(stopped)
            answer = self._get(path, stopped)
        return answer.status, answer.body

    def _get(self, path: str, stopped: Stopped) -> Answer:
        return self._client.ask("GET", path, {TOKEN_HEADER: self._token}, SECONDS, stopped)

    def _renew(self, stopped: Stopped) -> None:
        self._token = ""
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        status, body, _ = self._client.ask("PUT", TOKEN, headers, SECONDS, stopped)
        token = body.strip()
        if status != 200 or not re.fullmatch(r"[\x21-\x7e]{1,1024}", token):
            raise OSError(f"no session token is given (HTTP {status})")
        self._token = token


def parse_time(text: str) -> float:
    """``2026-05-02T08:22:00Z`` to Unix seconds. Raises ``ValueError``."""
    return float(timegm(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%SZ")))


def parse_action(body: str, now: float) -> list[Notice]:
    """The notice that ``spot/instance-action`` tells. Raises ``ValueError`` for anything else. Pure."""
    data = json.loads(body)
    action, when = (data.get("action"), data.get("time")) if isinstance(data, dict) else (None, None)
    if not isinstance(action, str) or action not in _KINDS or not isinstance(when, str):
        raise ValueError(f"{ACTION}: not an action and its time: {body[:80]!r}")
    return [Notice("aws", _KINDS[action], f"{ACTION}:{action}@{when}", now, parse_time(when), f"{action} at {when}")]


def parse_lifecycle(body: str, now: float) -> list[Notice]:
    """A notice when the group means to end the instance. Raises ``ValueError`` for what is no state's name. Pure."""
    state = body.strip()
    if not re.fullmatch(r"[A-Za-z:]{1,40}", state):
        raise ValueError(f"{LIFECYCLE}: not a state: {body[:80]!r}")
    if state != "Terminated":
        return []
    return [Notice("aws", "reclaim", f"{LIFECYCLE}:{state}", now, None, "its Auto Scaling group ends it")]


def parse_rebalance(body: str, now: float) -> list[Notice]:
    """The recommendation that ``rebalance`` tells. Raises ``ValueError``. Pure."""
    data = json.loads(body)
    when = data.get("noticeTime") if isinstance(data, dict) else None
    if not isinstance(when, str):
        raise ValueError(f"{REBALANCE}: no noticeTime: {body[:80]!r}")
    parse_time(when)
    return [Notice("aws", "rebalance", f"{REBALANCE}@{when}", now, None, f"recommended at {when}")]


def parse_scheduled(body: str, now: float) -> list[Notice]:
    """What is planned for the instance; one that can't be read does not spoil the others. Raises ``ValueError``. Pure."""
    data = json.loads(body)
    if not isinstance(data, list):
        raise ValueError(f"{SCHEDULED}: not a list: {body[:80]!r}")
    return [notice for event in data if (notice := _scheduled(event, now)) is not None]


def _scheduled(event: Any, now: float) -> Notice | None:
    if not isinstance(event, dict):
        return None
    name, code, when = event.get("EventId"), event.get("Code"), event.get("NotBefore")
    over = event.get("State") in ("completed", "canceled") or str(event.get("Description")).startswith(
        ("[Completed]", "[Canceled]")
    )
    if over or not (isinstance(name, str) and isinstance(code, str) and isinstance(when, str)):
        return None
    try:
        deadline = float(timegm(time.strptime(when, "%d %b %Y %H:%M:%S GMT")))
    except ValueError:
        return None
    return Notice("aws", "maintenance", f"{SCHEDULED}:{name}", now, deadline, f"{code} from {when}")


class AwsSource:
    """See ``Source``. Raises ``ValueError`` when ``url`` is no address."""

    provider = "aws"

    def __init__(self, url: str, *, pause: float = PAUSE) -> None:
        self.pause = pause
        self._metadata = Metadata(url)
        self._looks = 0

    def afresh(self) -> None:
        """Nothing here waits for a change."""

    def look(self, clock: Callable[[], float], stopped: Stopped) -> Look:
        """What takes the machine away each time, what only warns now and then. A page that fails does not silence the others."""
        pages: list[tuple[str, Callable[[str, float], list[Notice]], bool]] = [
            (ACTION, parse_action, True),
            (LIFECYCLE, parse_lifecycle, True),
        ]
        if self._looks % WARNINGS_EVERY == 0:
            pages += [(REBALANCE, parse_rebalance, False), (SCHEDULED, parse_scheduled, False)]
        self._looks += 1
        found: list[Notice] = []
        faults: list[str] = []
        complete = True
        for path, parse, loss in pages:
            try:
                status, body = self._metadata.get(path, stopped)
                if status == 200:
                    found += parse(body, clock())
                elif status != 404:
                    raise ValueError(f"{path}: HTTP {status}")
            except OSError as error:
                # The service itself: asking for the other pages would take as long again.
                faults.append(f"{type(error).__name__}: {error}")
                return Look(tuple(found), False, tuple(faults))
            except (ValueError, RecursionError) as error:
                faults.append(str(error))
                complete = complete and not loss
        return Look(tuple(found), complete, tuple(faults))
