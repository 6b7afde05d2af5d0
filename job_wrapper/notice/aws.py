"""Reclaim notices of AWS: the instance metadata service, version 2 (EC2 user guide, "Spot Instance interruption notices").

``spot/instance-action`` is 404 until a notice is given, then ``{"action":"terminate","time":"…Z"}``, about 120 s ahead, best effort.
``events/recommendations/rebalance`` comes earlier and promises nothing. A token is had with PUT; 401 means that it has expired.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from calendar import timegm
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from job_wrapper.notice.types import Kind, Notice

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN = "/latest/api/token"  # noqa: S105
TOKEN_SECONDS = 21600
TIMEOUT = 2.0
"""Seconds for one request: the service is on the host itself."""
MISSES = 3
"""Looks in a row that must find nothing before a notice counts as withdrawn: one 404 between two notices is no withdrawal."""
REBALANCE_EVERY = 5
_KINDS: dict[str, Kind] = {"terminate": "reclaim", "stop": "stop", "hibernate": "hibernate"}


class Metadata:
    """GET with a session token. One connection a request: an idle one may be closed under us at the worst moment."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        self._host, self._port = parts.hostname or "169.254.169.254", parts.port or 80
        self._base = parts.path.rstrip("/")
        self._token = ""

    def get(self, path: str) -> tuple[int, str]:
        """Status and body. Raises ``OSError`` or ``http.client.HTTPException`` when there is no answer."""
        if not self._token:
            self._renew()
        status, body = self._request("GET", path)
        if status == 401:  # expired: once more with a new one, never in a loop
            self._renew()
            status, body = self._request("GET", path)
        return status, body

    def _renew(self) -> None:
        self._token = ""
        status, body = self._request("PUT", TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)})
        if status != 200 or not body.strip() or not body.strip().isprintable():
            raise OSError(f"the metadata service gives no session token (HTTP {status})")
        self._token = body.strip()

    def _request(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        try:
            sent = dict(headers or {})
            if self._token:
                sent["X-aws-ec2-metadata-token"] = self._token
            connection.request(method, self._base + path, headers=sent)
            response = connection.getresponse()
            return response.status, response.read(65536).decode("utf-8", "replace")
        finally:
            connection.close()


def parse_time(text: str) -> float:
    """``2026-05-02T08:22:00Z`` to Unix seconds. Raises ``ValueError``."""
    return float(timegm(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%SZ")))


def parse_action(body: str, now: float) -> Notice:
    """The notice that ``spot/instance-action`` tells. Raises ``ValueError`` for anything else. Pure."""
    data = json.loads(body)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    action, when = data.get("action"), data.get("time")
    if action not in _KINDS or not isinstance(when, str):
        raise ValueError(f"action {action!r} at {when!r}")
    return Notice("aws", _KINDS[action], f"{ACTION}:{action}@{when}", now, parse_time(when), f"{action} at {when}")


def parse_rebalance(body: str, now: float) -> Notice:
    """The recommendation that ``rebalance`` tells. Raises ``ValueError``. Pure."""
    data = json.loads(body)
    when = data.get("noticeTime") if isinstance(data, dict) else None
    if not isinstance(when, str):
        raise ValueError("no noticeTime")
    return Notice("aws", "rebalance", f"{REBALANCE}@{when}", now, None, f"recommended at {when}")


class AwsWatcher:
    """Asks every second (AWS advises 5 s; a second costs nothing and may be the one that counts).

    ``known`` is a notice that was emitted before, by a watcher that this one takes over from.
    """

    def __init__(
        self,
        url: str,
        *,
        interval: float = 1.0,
        asleep: Callable[[], bool] = lambda: False,
        known: Notice | None = None,
        log: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._metadata = Metadata(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or url)
        self._interval = interval
        self._asleep = asleep
        self._log = log
        self._clock = clock
        self._current = known
        self._misses = 0
        self._rebalance = ""
        self._fault = ""

    def watch(self, emit: Callable[[Notice | None], None], stopped: Callable[[float], bool]) -> None:
        """See ``Watcher``. While ``asleep()`` nothing is asked: somebody else on the node watches."""
        looks = 0
        while not stopped(self._interval if looks else 0.0):
            looks += 1
            if self._asleep():
                continue
            try:
                self._look(emit, looks % REBALANCE_EVERY == 1)
                self._fault = ""
            except (OSError, http.client.HTTPException, ValueError) as error:
                # No answer, or nonsense, says nothing: neither a notice nor its withdrawal.
                if str(error) != self._fault:
                    self._fault = str(error)
                    self._log(f"aws metadata: {type(error).__name__}: {error}; looking again")

    def _look(self, emit: Callable[[Notice | None], None], also_rebalance: bool) -> None:
        status, body = self._metadata.get(ACTION)
        if status == 200:
            notice = parse_action(body, self._clock())
            self._misses = 0
            if self._current is None or notice.source_id != self._current.source_id:
                self._current = notice
                emit(notice)
        elif status == 404 and self._current is not None:
            self._misses += 1
            if self._misses >= MISSES:
                self._current = None
                emit(None)
        elif status != 404:
            raise OSError(f"{ACTION}: HTTP {status}")
        if also_rebalance:
            status, body = self._metadata.get(REBALANCE)
            if status == 200:
                warning = parse_rebalance(body, self._clock())
                if warning.source_id != self._rebalance:
                    self._rebalance = warning.source_id
                    emit(warning)
