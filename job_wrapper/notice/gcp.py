"""Reclaim notices of Google Compute Engine: ``instance/preempted`` of the metadata server (documentation of Spot VMs, "Preemption process",
and "View and query VM metadata").

The value turns ``TRUE`` together with the machine's ACPI soft-off, 30 s before its end, unless the longer notice was asked for at launch. A
look every few seconds would lose much of that, so the request waits at the server (``wait_for_change``). 503 and empty answers happen.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import quote

from job_wrapper.notice.http import Answer, Client, Stopped
from job_wrapper.notice.types import Notice
from job_wrapper.notice.watch import Look

PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
HEADERS = {"Metadata-Flavor": "Google"}
SECONDS = 2.0
"""For a request that does not wait."""
WAIT = 10
"""Seconds that one request waits for a change. Short: a connection may die with a live migration, and nobody says so."""
PAUSE = 0.5
"""Between the starts of two looks where the server answers at once."""
PLAIN = 3
"""Looks in a row with one answer, without waiting, before the first that waits: as many as a withdrawal takes."""
NOTICE = 30.0
"""Seconds from the notice to the end. The server does not tell; this is what Compute Engine gives unless more was asked for."""
EVENTS = ("MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE")


class GcpSource:
    """See ``Source``. ``notice``: seconds that a preempted machine has. Raises ``ValueError`` when ``url`` is no address."""

    provider = "gcp"

    def __init__(self, url: str, *, pause: float = PAUSE, notice: float = NOTICE, wait: int = WAIT) -> None:
        self.pause = pause
        self._client = Client(os.environ.get("GCE_METADATA_HOST") or url)
        self._notice = notice
        self._wait = wait
        self._last, self._same, self._etag = "", 0, ""
        self._event, self._events = "NONE", 0

    def afresh(self) -> None:
        """See ``Source``."""
        self._same = 0

    def look(self, clock: Callable[[], float], stopped: Stopped) -> Look:
        """See ``Source``; returns when the value changes, or after ``wait`` seconds."""
        waits = self._same >= PLAIN
        path = PREEMPTED
        if waits:
            # The tag makes the server answer at once where the value has changed between two requests.
            tag = f"&last_etag={quote(self._etag, safe='')}" if self._etag else ""
            path = f"{PREEMPTED}?wait_for_change=true&timeout_sec={self._wait}{tag}"
        answer = self._get(path, self._wait + SECONDS if waits else SECONDS, stopped)
        value = answer.body.strip()
        if value not in ("TRUE", "FALSE"):
            raise ValueError(f"{PREEMPTED}: neither TRUE nor FALSE: {answer.body[:80]!r}")
        self._same = self._same + 1 if value == self._last else 1
        self._last, self._etag = value, answer.headers.get("etag", "")
        if value == "TRUE":
            now = clock()
            return Look((Notice("gcp", "reclaim", f"{PREEMPTED}=TRUE", now, now + self._notice, "preempted"),))
        return self._maintenance(clock, stopped)

    def _maintenance(self, clock: Callable[[], float], stopped: Stopped) -> Look:
        """A warning only: what goes wrong here is no reason to doubt the rest."""
        try:
            event = self._get(MAINTENANCE, SECONDS, stopped).body.strip()
        except (OSError, ValueError) as error:
            return Look(faults=(f"{type(error).__name__}: {error}",))
        if event in EVENTS:
            # Counted: the same word next month is another event.
            self._events += event != self._event
            self._event = event
            return Look(
                (Notice("gcp", "maintenance", f"{MAINTENANCE}={event}#{self._events}", clock(), None, event.lower()),)
            )
        self._event = "NONE"
        return Look(faults=() if event == "NONE" else (f"{MAINTENANCE}: {event[:80]!r}",))

    def _get(self, path: str, seconds: float, stopped: Stopped) -> Answer:
        """200 by Google's own server. Raises otherwise."""
        answer = self._client.ask("GET", path, HEADERS, seconds, stopped)
        if answer.status != 200 or answer.headers.get("metadata-flavor") != "Google":
            raise ValueError(f"{path.partition('?')[0]}: HTTP {answer.status}, not from Google's metadata server")
        return answer
