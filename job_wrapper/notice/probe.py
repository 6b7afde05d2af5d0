"""Whose metadata service is here? Each is asked in its own manner, and only an answer in its own manner counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from job_wrapper.errors import UsageError
from job_wrapper.notice.http import Answer, Client, Stopped
from job_wrapper.notice.types import Notice, Watcher

SECONDS = 2.0
TRIES = (0.0, 1.0, 2.0)
"""Seconds before each round: the service may be late at boot."""
_DMI = Path("/sys/class/dmi/id")
_VENDORS = ("amazon", "google", "microsoft corporation")


def vendor_hint(folder: Path = _DMI) -> bool:
    """Whether the machine's firmware names one of the three clouds; False where it can't be read. Sends nothing."""
    for name in ("sys_vendor", "product_name", "board_vendor", "bios_vendor"):
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace").strip().lower()
        except OSError:
            continue
        if text.startswith(_VENDORS):
            return True
    return False


def _gcp(client: Client, stopped: Stopped) -> bool:
    answer = client.ask("GET", "/computeMetadata/v1/instance/id", {"Metadata-Flavor": "Google"}, SECONDS, stopped)
    return (
        answer.status == 200 and answer.headers.get("metadata-flavor") == "Google" and answer.body.strip().isdecimal()
    )


def _aws(client: Client, stopped: Stopped) -> bool:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token: Answer = client.ask("PUT", "/latest/api/token", headers, SECONDS, stopped)
    if token.status != 200 or not token.body.strip().isascii() or not token.body.strip().isprintable():
        return False
    headers = {"X-aws-ec2-metadata-token": token.body.strip()}
    answer = client.ask("GET", "/latest/meta-data/instance-id", headers, SECONDS, stopped)
    return answer.status == 200 and answer.body.startswith("i-")


def _azure(client: Client, stopped: Stopped) -> bool:
    answer = client.ask("GET", "/metadata/instance?api-version=2021-02-01", {"Metadata": "true"}, SECONDS, stopped)
    if answer.status != 200:
        return False
    data = json.loads(answer.body)
    return isinstance(data, dict) and isinstance(data.get("compute"), dict) and "vmId" in data["compute"]


_MANNERS: dict[str, Callable[[Client, Stopped], bool]] = {"gcp": _gcp, "aws": _aws, "azure": _azure}


def probe(url: str, stopped: Stopped = lambda _: False) -> str:
    """``aws``, ``gcp``, ``azure``, or "" where none of them answers. Raises ``ValueError`` when ``url`` is no address."""
    client = Client(url)
    for name, manner in _MANNERS.items():
        try:
            if manner(client, stopped):
                return name
        except TimeoutError:
            return ""  # nobody there: the others would take as long
        except (OSError, ValueError, RecursionError):
            continue
    return ""


def find(url: str, stopped: Stopped = lambda _: False) -> str:
    """As ``probe``, in several rounds. "" also where ``stopped``."""
    for seconds in TRIES:
        if stopped(seconds):
            return ""
        if found := probe(url, stopped):
            return found
    return ""


class Found:
    """Looks for the service, then watches it; ends where there is none. See ``Watcher``."""

    def __init__(self, url: str, make: Callable[[str], Watcher], log: Callable[[str], None]) -> None:
        self._url, self._make, self._log = url, make, log

    def watch(self, emit: Callable[[Notice | None], None], stopped: Stopped) -> None:
        """See ``Watcher``."""
        try:
            provider = find(self._url, stopped)
            watcher = self._make(provider) if provider else None
        except (ValueError, UsageError) as error:
            self._log(f"no cloud's notices are watched for here: {error}")
            return
        if watcher is not None:
            self._log(f"watching for notices of {provider}, whose metadata service is here")
            watcher.watch(emit, stopped)
