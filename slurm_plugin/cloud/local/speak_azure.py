"""Azure's instance metadata: scheduled events.

Source: Azure documentation, "Scheduled Events for Linux VMs". An event that is over vanishes; there is no word for "completed".
Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from slurm_plugin.cloud.local.http_types import Reply, Request

_VERSIONS = {"2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01"}


def answer(request: Request, machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> Reply:
    """One request. Without ``Metadata: true`` or with ``X-Forwarded-For`` 400."""
    if request.headers.get("metadata", "").lower() != "true":
        return _error("Bad request. Required metadata header not specified")
    if "x-forwarded-for" in request.headers:
        return _error("Bad request. X-Forwarded-For is not allowed")
    path = request.path.rstrip("/").lower()
    version = request.query.get("api-version", "")
    if path == "/metadata/scheduledevents":
        if version not in _VERSIONS:
            return _error(f"Bad request. api-version {version!r} is not supported; newest: 2020-07-01")
        if request.method == "POST":
            return _start(request, machine, control, now)
        return _json(_events(machine, control, now))
    if path == "/metadata/instance" and request.method == "GET":
        if not version:
            return _error("Bad request. api-version was not specified in the request")
        return _json({"compute": _compute(machine)})
    return Reply(404, json.dumps({"error": "Not found"}), {"Content-Type": "application/json"})


def _json(value: Any) -> Reply:
    return Reply(200, json.dumps(value), {"Content-Type": "application/json; charset=utf-8"})


def _error(message: str) -> Reply:
    return Reply(400, json.dumps({"error": message}), {"Content-Type": "application/json; charset=utf-8"})


def _events(machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> dict[str, Any]:
    reclaim = control.get("reclaim")
    incarnation = 1 + int(control.get("changes", 0))
    if reclaim is None or float(reclaim["noticed"]) > now:
        return {"DocumentIncarnation": incarnation, "Events": []}
    started = bool(reclaim.get("started"))
    event = {
        "EventId": reclaim["notice_id"],
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": [machine["node"]],
        "EventStatus": "Started" if started else "Scheduled",
        "NotBefore": "" if started else formatdate(float(reclaim["deadline"]), usegmt=True),
        "Description": "Virtual machine is going to be deallocated as requested by the platform.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return {"DocumentIncarnation": incarnation, "Events": [event]}


def _start(request: Request, machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> Reply:
    """The machine gives itself up before the deadline."""
    reclaim = control.get("reclaim")
    try:
        asked = {str(r["EventId"]) for r in json.loads(request.body)["StartRequests"]}
    except (ValueError, KeyError, TypeError):
        return _error("Bad request. StartRequests with EventId expected")
    if reclaim is None or reclaim["notice_id"] not in asked:
        return _error("Bad request. Unknown EventId")
    changed = {**reclaim, "started": True, "deadline": min(float(reclaim["deadline"]), now + 1.0)}
    return Reply(200, "", control={"reclaim": changed})


def _compute(machine: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": machine["node"],
        "vmId": machine["instance_id"],
        "vmSize": machine["instance_type"],
        "location": machine["region"],
        "zone": machine["zone"],
        "priority": "Spot" if machine["market"] == "spot" else "Regular",
        "tagsList": [{"name": k, "value": v} for k, v in machine["tags"].items()],
    }
